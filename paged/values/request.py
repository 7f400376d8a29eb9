"""Request and Completion: the input and the output of the engine for one row."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING

from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.json_value import ALWAYS_WRITTEN
from pagedrun.paged.values.logprobs import Continuation, Score, TokenLogprob
from pagedrun.paged.values.pooling import PooledText
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.paged.values.vote import VoteResult, vote_reader

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray


class FinishReason(StrEnum):
    """Finish reasons of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt with its parameters.

    `index` is the row's position in the input. It keys the random stream, so that a row draws the
    same numbers in any batch. `bad_words_ids` are the token ids of `params.bad_words`, several for
    a word with several encodings. A request with `continuations` is answered by their scores; see
    `scoring`. Those with a lower `priority` run earlier, and `earlier_token_ids`, the answer of an
    earlier run, become drafts; no answer depends on either. A request with `texts` is answered by
    their vectors or scores; its prompt are the tokens of the first.
    """

    index: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    continuations: tuple[Continuation, ...] = ()
    priority: int = 0
    earlier_token_ids: tuple[int, ...] = ()
    texts: tuple[PooledText, ...] = ()

    @classmethod
    def scoring(
        cls,
        index: int,
        prompt_token_ids: tuple[int, ...],
        continuations: tuple[Continuation, ...],
        prompt_logprobs: int | None = None,
    ) -> "Request":
        """Return the request for the log-probability of each continuation of a prompt.

        Each is a sample with given tokens.
        """
        longest = max(len(each.token_ids) for each in continuations)
        params = SamplingParams(
            n=len(continuations),
            max_tokens=longest,
            ignore_eos=True,
            prompt_logprobs=prompt_logprobs,
        )
        return cls(index, prompt_token_ids, params, continuations=continuations)

    @classmethod
    def pooling(cls, index: int, texts: tuple[PooledText, ...]) -> "Request":
        """Return the request for the vectors or scores of texts."""
        params = SamplingParams(max_tokens=1, ignore_eos=True)
        return cls(index, texts[0].token_ids, params, texts=texts)

    @property
    def max_num_tokens(self) -> int:
        """Maximum number of stored tokens: all but the last."""
        return len(self.prompt_token_ids) + self.params.max_num_drawn - 1

    @property
    def max_num_generated(self) -> int:
        """Maximum number of tokens of all answers: none for texts, and for continuations, whose
        tokens are given."""
        is_given = self.continuations or self.texts
        return 0 if is_given else self.params.n * self.params.max_tokens

    def without_beams(self) -> "Request":
        """Return a request for as many samples as this one has beams, with about the same cost."""
        if not self.params.has_beams:
            return self
        return replace(self, params=replace(self.params, n=self.params.beam_width, beam_width=1))

    def num_blocks_at_once(self, block_size: int) -> int:
        """Return the minimum number of blocks to finish: of one answer, since answers may run
        alone, or of all beams, which run together and share the whole blocks of the prompt."""
        full, prompt = -(-self.max_num_tokens // block_size), len(self.prompt_token_ids)
        shared = prompt // block_size
        return (full - shared) * self.params.beam_width + shared

    def fitted(self, max_model_len: int, vocab_size: int) -> "Request":
        """Return the request with `max_tokens` cut to the room that the prompt leaves.

        Raises `RowError` if the prompt is empty, leaves no room for a single token or for its
        continuations, or if an id is outside the vocabulary: nothing unchecked may reach a kernel.
        """
        self._check_length(max_model_len)
        self._check_ids(vocab_size)
        room = max_model_len - len(self.prompt_token_ids)
        if self.continuations or self.params.max_tokens <= room:
            return self
        min_tokens = min(self.params.min_tokens, room)
        return replace(self, params=replace(self.params, max_tokens=room, min_tokens=min_tokens))

    def _check_ids(self, vocab_size: int) -> None:
        """Raise `RowError` for an id outside the vocabulary, and for more beams than half of it."""
        if self.params.has_beams and 2 * self.params.beam_width > vocab_size:
            raise RowError(
                "invalid_param",
                f"beam_width {self.params.beam_width} is more than half of the vocabulary",
                param="beam_width",
            )
        by_param = {
            "prompt_token_ids": self.prompt_token_ids,
            **self.params.token_ids(),
            "bad_words": tuple(chain.from_iterable(self.bad_words_ids)),
            "continuations": tuple(chain.from_iterable(c.token_ids for c in self.continuations)),
        }
        for param, ids in by_param.items():
            if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
                raise RowError(
                    "token_id_out_of_range",
                    f"{param} has an id outside the model's vocabulary, 0 to {vocab_size - 1}",
                    param=param,
                )

    def _check_length(self, max_model_len: int) -> None:
        length = len(self.prompt_token_ids)
        own = f"the model's own, or {option('max_model_len')}"
        limit = f"the context is {max_model_len} tokens ({own})"
        if length == 0:
            raise RowError("empty_prompt", "the prompt has no tokens", param="prompt")
        if self.continuations:
            # The last token of each is scored from the position before it and never read.
            if length + self.params.max_tokens - 1 > max_model_len:
                raise RowError(
                    "prompt_too_long",
                    f"the prompt has {length} tokens and the longest of its continuations "
                    f"{self.params.max_tokens}, but {limit}",
                    param="continuations",
                )
        elif length + min(self.params.max_tokens, 1) > max_model_len:
            needs = " and its answer needs at least one" if self.params.max_tokens else ""
            raise RowError(
                "prompt_too_long",
                f"the prompt has {length} tokens{needs}, but {limit}",
                param="prompt",
            )


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """Answer of one sample; an item of `outputs` in an output row.

    `logprobs` has one item for each token, and `cumulative_logprob` is their sum; None unless
    requested. `reasoning` is the thought before the answer, not in `text`; None without one.
    `beam_score`: see `FinishedBeam`.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = field(default=None, metadata=ALWAYS_WRITTEN)
    cumulative_logprob: float | None = field(default=None, init=False, metadata=ALWAYS_WRITTEN)
    logprobs: tuple[TokenLogprob, ...] | None = field(default=None, metadata=ALWAYS_WRITTEN)
    reasoning: str | None = None
    beam_score: float | None = None

    def __post_init__(self) -> None:
        """Add up the log-probabilities."""
        if self.logprobs is not None:
            total = sum(each.logprob for each in self.logprobs)
            object.__setattr__(self, "cumulative_logprob", total)

    @property
    def is_cut_thought(self) -> bool:
        """True if the token limit ended the reasoning, so that there is no answer."""
        is_cut = self.finish_reason is FinishReason.LENGTH
        return self.reasoning is not None and not self.text and is_cut


@dataclass(frozen=True, slots=True)
class Completion:
    """All answers to one request, or its error.

    `num_cached_tokens`: prompt tokens with keys and values from the cache. A duplicate has the
    answer of another request; `num_copied_tokens` are generated tokens of the outputs that were
    copied, not computed. With a `vote`, outputs are the drawn samples, perhaps fewer than
    `params.n`. `prompt_logprobs`: if requested, one item for each prompt token, None for the first.
    A request with continuations has `scores`, in their order, and no outputs.
    `num_read_once_tokens`: prompt tokens that were read together with other rows.
    A request with texts has `pooled`, [num_parts, size]: their vectors or scores.
    `num_begun_tokens`: first tokens of the answer that are from an earlier run; `is_copied`: all of
    them are.
    """

    request: Request
    outputs: tuple[SampleOutput, ...] = ()
    num_cached_tokens: int = 0
    error: RowError | None = field(default=None)
    is_duplicate: bool = False
    num_copied_tokens: int = 0
    vote: VoteResult | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    scores: tuple[Score, ...] = ()
    num_read_once_tokens: int = 0
    num_begun_tokens: int = 0
    is_copied: bool = False
    pooled: "NDArray[float32] | None" = field(default=None, compare=False)

    @property
    def num_computed_tokens(self) -> int:
        """Tokens of its outputs that were computed for it."""
        return sum(len(each.token_ids) for each in self.outputs) - self.num_copied_tokens

    @property
    def answer(self) -> SampleOutput | None:
        """The first output, or with a vote the first that voted for the winner; None without
        outputs."""
        params, winner = self.request.params, None if self.vote is None else self.vote.winner
        if params.vote is not None and winner is not None:
            read = vote_reader(params.vote)
            return next(output for output in self.outputs if read(output.text) == winner)
        return self.outputs[0] if self.outputs else None

    @property
    def text(self) -> str | None:
        """The text of `answer`, or the likeliest continuation; None without an answer."""
        if self.scores:
            return max(self.scores, key=lambda each: each.logprob).text
        answer = self.answer
        return None if answer is None else answer.text

    @property
    def finish_reason(self) -> FinishReason:
        """Finish reason of `answer`; without outputs, the reason for that."""
        answer = self.answer
        return self.finish_reasons[0] if answer is None else answer.finish_reason

    @property
    def finish_reasons(self) -> tuple[FinishReason, ...]:
        """Finish reason of each output, or of the row if it has an error or scores.

        Vectors, scores of pairs and labels have none.
        """
        if self.error is not None:
            return (FinishReason.ERROR,)
        if self.scores:
            return (FinishReason.STOP,)
        return tuple(output.finish_reason for output in self.outputs)
