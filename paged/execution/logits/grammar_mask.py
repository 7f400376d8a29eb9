"""Logits processor for structured output: schemas, regular expressions and grammars."""

from concurrent.futures import Future
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.array_types import Bools, Int64s
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.logits.logits_processor import LogitsProcessor, SamplingBatch
from pagedrun.paged.scheduling.step_input import SamplingMetadata
from pagedrun.paged.text.answer_text import AnswerText
from pagedrun.paged.text.grammar import CompiledGrammar, Grammars, TokenMask
from pagedrun.paged.text.reasoning import ReasoningTags
from pagedrun.paged.text.structured_answer import (
    GrammarMatcher,
    MaskWorker,
    ReasoningTokens,
    StructuredAnswer,
)
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

NO_FORCED_TOKEN = -1


@dataclass(slots=True)
class _Row:
    """Row with a structure: its grammar and the state of each sample."""

    request: Request
    field: str
    grammar: Future[CompiledGrammar]
    may_jump: bool
    answers: dict[int, StructuredAnswer] = dataclass_field(default_factory=dict)
    error: RowError | None = None


class GrammarMask(LogitsProcessor):
    """Masks tokens that would leave the structure of an answer.

    Each answer is followed through its thought, if any, and then its structure; the mask of its
    next token is computed in a thread while the device computes the next step. Masks do not depend
    on the other rows of a step.
    """

    needs_newest_token = True

    def __init__(
        self, grammars: Grammars, tokenizer: Tokenizer, device: Device, *, jump_ahead: bool = True
    ) -> None:
        """jump_ahead: let `forced` return tokens without alternative."""
        self.grammars = grammars
        self._tokenizer = tokenizer
        self._texts = AnswerText(tokenizer)
        self._tags: dict[ReasoningTags, ReasoningTokens] = {}
        self._device = device
        self.jump_ahead = jump_ahead
        self._rows: dict[int, _Row] = {}
        self._forced: dict[tuple[int, int], int] = {}
        self._filler = MaskWorker()

    @property
    def num_followed(self) -> int:
        """Number of rows with a structure."""
        return len(self._rows)

    def begin(self, request: Request) -> None:
        """Start to compile the grammar of a request with a structure."""
        self.end(request.index)  # of an earlier run that was abandoned
        structure = request.params.structure
        if structure is not None:
            grammar = self.grammars.compiled(structure)
            # Log-probabilities of a token come from the step that draws it.
            has_steps = request.params.logprobs is not None or _may_forbid(request.params)
            may_jump = self.jump_ahead and not has_steps
            self._rows[request.index] = _Row(request, structure.field, grammar, may_jump)

    def end(self, row: int) -> None:
        """Remove a request."""
        self._rows.pop(row, None)

    def applies(self, draws: SamplingMetadata) -> bool:
        """Return whether an answer has a structure."""
        return bool(self._rows) and not self._rows.keys().isdisjoint(draws.row.tolist())

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Advance the answers by these tokens, and start to compute the next masks."""
        self._forced.clear()
        if not self._rows:
            return
        to_fill: list[GrammarMatcher] = []
        for row, sample, token in zip(
            rows.tolist(), samples.tolist(), tokens.tolist(), strict=True
        ):
            followed = self._rows.get(row)
            if followed is None:
                continue
            answer = followed.answers[sample]
            answer.take(token)
            forced = answer.forced_token() if followed.may_jump else None
            if forced is not None:
                self._forced[row, sample] = forced
            elif answer.unfilled is not None:
                to_fill.append(answer.unfilled)
        self._filler.begin(to_fill)

    def forced(self, rows: Int64s, samples: Int64s) -> Int64s:
        """Return the only token that may follow each answer, `NO_FORCED_TOKEN` if several may.

        rows, samples, and the tokens: [num_answers] int64.
        """
        if not self._forced:
            return np.full(len(rows), NO_FORCED_TOKEN, dtype=np.int64)
        answers = zip(rows.tolist(), samples.tolist(), strict=True)
        tokens = [self._forced.get(answer, NO_FORCED_TOKEN) for answer in answers]
        return np.array(tokens, dtype=np.int64)

    def matcher(self, row: int, sample: int) -> GrammarMatcher | None:
        """Return the matcher of an answer, with the mask of its next token; None where the next
        token may be one of no structure, and if the answer has a grammar of its own, since what is
        tried on copies would count for its limits."""
        answer = self._rows[row].answers.get(sample) if row in self._rows else None
        found = None if answer is None else answer.structure_matcher
        if found is not None:
            self._filler.wait()
        return None if found is None or found.is_over or found.is_alone else found

    def are_complete(self, rows: Int64s, samples: Int64s) -> Bools:
        """Return a mask of the answers that no token may follow, [num_answers] bool."""
        if not self._rows:
            return np.zeros(len(rows), dtype=np.bool_)
        answers = zip(rows.tolist(), samples.tolist(), strict=True)
        return np.array([self._is_complete(row, sample) for row, sample in answers], dtype=np.bool_)

    def _is_complete(self, row: int, sample: int) -> bool:
        return row in self._rows and self._rows[row].answers[sample].is_complete

    def error(self, row: int) -> RowError | None:
        """Return the error of a structured row without an allowed token, None for another row."""
        found = self._rows.get(row)
        if found is None:
            return None
        if found.error is not None:
            return found.error
        reasons = [each.error for each in found.answers.values() if each.error]
        if reasons:
            return RowError(
                "grammar_limit", f"{found.field} is too complex: {reasons[0]}", param=found.field
            )
        return RowError(
            "no_token_allowed",
            f"{found.field} and the other parameters of the row leave no token allowed, or "
            "the model's output contains NaN",
            param=found.field,
        )

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Mask tokens that leave the structure of their answer."""
        assert batch.draws is not None, "captured"
        self._filler.wait()
        answers = zip(batch.draws.row.tolist(), batch.draws.sample.tolist(), strict=True)
        masks: dict[int, TokenMask] = {}
        for index, (row, sample) in enumerate(answers):
            mask = self._mask(self._rows[row], sample) if row in self._rows else None
            if mask is not None:
                masks[index] = mask
        if not masks:
            return logits
        self._device.kernels.mask_logits(
            logits,
            self._device.place(torch.tensor(list(masks), dtype=torch.int64)),
            self._device.place(torch.from_numpy(np.stack(list(masks.values())))),
        )
        return logits

    def _mask(self, row: _Row, sample: int) -> TokenMask | None:
        """Return the mask of the next token of a sample, None if all are allowed."""
        if sample not in row.answers and row.error is None:
            error = row.grammar.exception()
            if error is None:
                row.answers[sample] = self._answer(row)
            elif isinstance(error, RowError):
                row.error = error
            else:
                raise error
        if row.error is not None:
            return np.zeros(self.grammars.compiler.mask_width, dtype=np.int32)
        return row.answers[sample].mask

    def _answer(self, row: _Row) -> StructuredAnswer:
        """Return a new answer."""
        thought = self._texts.thought(row.request)
        tags = None if thought is None else thought.tags
        if tags is None:
            return StructuredAnswer(row.grammar.result(), thought)
        if tags not in self._tags:
            self._tags[tags] = ReasoningTokens(self._tokenizer, tags)
        return StructuredAnswer(row.grammar.result(), thought, self._tags[tags])


def _may_forbid(params: SamplingParams) -> bool:
    """Return whether other parameters may mask the only token that a structure allows."""
    is_narrowed = params.allowed_token_ids is not None or bool(params.bad_words)
    return is_narrowed or bool(params.min_tokens and params.stop_token_ids)
