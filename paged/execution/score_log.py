"""Log-probabilities that requests ask for, kept until the request is answered."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pagedrun.kernels.array_types import Bools, Int64s
from pagedrun.paged.execution.step_result import FoundLogprob, HostLogprobs, InFlight
from pagedrun.paged.scheduling.step_input import SamplingMetadata
from pagedrun.paged.values.logprobs import IMPOSSIBLE, Score, TokenLogprob, TopLogprob
from pagedrun.paged.values.request import Completion, Request, SampleOutput


@dataclass(slots=True)
class _Scored:
    """Request, tokens of its prompt from the second on, and tokens of its answers by sample."""

    request: Request
    prompt: list[TokenLogprob] = field(default_factory=list)
    answers: dict[int, list[TokenLogprob]] = field(default_factory=dict)


class ScoreLog:
    """Log-probabilities by request, added in the order of the tokens; other rows are ignored.

    `show` returns the text of one token.
    """

    def __init__(self, show: Callable[[int], str]) -> None:
        self._show = show
        self._texts: dict[int, str] = {}
        self._rows: dict[int, _Scored] = {}

    def begin(self, request: Request) -> None:
        """Add a request, if it asks for log-probabilities."""
        params = request.params
        if request.continuations or (params.logprobs, params.prompt_logprobs) != (None, None):
            self._rows[request.index] = _Scored(request)

    def end(self, row: int) -> None:
        """Remove a request, by its index."""
        self._rows.pop(row, None)

    def note_step(self, step: InFlight) -> list[Request]:
        """Add the scores of tokens that were inputs of a step.

        Returns the requests whose logits contain NaN.
        """
        failed: dict[int, Request] = {}
        for row, sample, token_id, found in step.scored():
            if found.is_number:
                self._note_known(row, sample, token_id, found)
            elif row in self._rows:
                failed[row] = self._rows[row].request
        return list(failed.values())

    def note_draws(
        self,
        draws: SamplingMetadata,
        logprobs: HostLogprobs | None,
        tokens: Int64s,
        is_kept: Bools,
    ) -> None:
        """Add the log-probabilities of sampled tokens, None if no draw requests any.

        tokens: [num_draws] int64. is_kept: [num_draws], False for discarded tokens.
        """
        for draw, found in () if logprobs is None else logprobs.of_draws(draws, is_kept):
            row, sample = int(draws.row[draw]), int(draws.sample[draw])
            self._note_answer(row, sample, int(tokens[draw]), found)

    def _note_known(self, row: int, sample: int, token_id: int, found: FoundLogprob) -> None:
        """Add a token of a prompt, or of a continuation."""
        scored = self._rows.get(row)
        if scored is None:
            return
        num_top = scored.request.params.prompt_logprobs
        if num_top is None or len(scored.prompt) + 1 == len(scored.request.prompt_token_ids):
            self._note_answer(row, sample, token_id, found)
        else:
            scored.prompt.append(self._token(token_id, found, num_top))

    def _note_answer(self, row: int, sample: int, token_id: int, found: FoundLogprob) -> None:
        """Add a token of an answer, or of a continuation."""
        scored = self._rows.get(row)
        if scored is not None:
            num_top = 1 if scored.request.continuations else scored.request.params.logprobs or 0
            token = self._token(token_id, found, num_top)
            scored.answers.setdefault(sample, []).append(token)

    def scored(self, output: SampleOutput, row: int) -> SampleOutput:
        """Return an answer with the log-probabilities of its tokens, if requested."""
        scored = self._rows.get(row)
        if scored is None or scored.request.params.logprobs is None:
            return output
        tokens = scored.answers.get(output.index, [])[: len(output.token_ids)]
        return replace(output, logprobs=tuple(tokens))

    def completed(self, completion: Completion, row: int) -> Completion:
        """Return a completion of a row or of its duplicate with all scores."""
        scored = self._rows.get(row)
        if scored is None or completion.error is not None:
            return completion
        request = scored.request
        if request.params.prompt_logprobs is not None:
            completion = replace(completion, prompt_logprobs=(None, *scored.prompt))
        if not request.continuations:
            return completion
        scores = [
            Score.of(each.text, tuple(scored.answers[sample]))
            for sample, each in enumerate(request.continuations)
        ]
        return replace(completion, outputs=(), scores=tuple(scores))

    def _token(self, token_id: int, found: FoundLogprob, num_top: int) -> TokenLogprob:
        top = [
            TopLogprob(each, self._text(each), max(logprob, IMPOSSIBLE), rank)
            for rank, (each, logprob) in enumerate(found.top[:num_top], start=1)
        ]
        logprob = max(found.logprob, IMPOSSIBLE)
        return TokenLogprob(token_id, self._text(token_id), logprob, found.rank, tuple(top))

    def _text(self, token_id: int) -> str:
        if token_id not in self._texts:
            self._texts[token_id] = self._show(token_id)
        return self._texts[token_id]
