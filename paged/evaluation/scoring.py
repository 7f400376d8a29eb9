"""Windows of tokens to score, and the prompts that score them all at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.prompt_input import TokensPrompt
from pagedrun.paged.values.request import Completion
from pagedrun.paged.values.sampling_params import MAX_N

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens to score behind others: `context` and `continuation` have at least one each."""

    context: Ids
    continuation: Ids
    num_cut: int = 0

    @classmethod
    def of(cls, context: Sequence[int], continuation: Sequence[int], max_length: int) -> "Window":
        """Return the window, its context cut from the left to what the model can read.

        That is `max_length` tokens: all but the last, which is scored and not read. Raises
        `RowError` if nothing is to score, nothing comes before it, or it does not fit by itself.
        """
        if not context or not continuation:
            empty = "continuation" if context else "context"
            raise RowError("empty_prompt", f"a request's {empty} has no tokens", param=empty)
        if len(continuation) > max_length:
            raise RowError(
                "prompt_too_long",
                f"a continuation has {len(continuation)} tokens, but max_length is {max_length}",
                param="continuation",
            )
        num_kept = max_length + 1 - len(continuation)
        return cls(tuple(context[-num_kept:]), tuple(continuation), max(len(context) - num_kept, 0))

    def as_prompt(self) -> TokensPrompt:
        """Return it as a prompt with one token behind it.

        Asked for its own log-probabilities, a prompt is read in large chunks, which a long
        continuation is not.
        """
        *read, last = (*self.context, *self.continuation)
        return {"prompt_token_ids": read, "continuations": [[last]]}

    def logprob(self, completion: Completion) -> float:
        """Return that of the continuation, from the answer to `as_prompt`."""
        read = (completion.prompt_logprobs or ())[len(self.context) :]
        (last,) = completion.scores
        return sum(token.logprob for token in read if token is not None) + last.logprob


@dataclass(frozen=True, slots=True)
class ScoringPrompt:
    """A context, and the windows that have it, by their places in the list they came in."""

    context: Ids
    places: tuple[int, ...]
    continuations: tuple[Ids, ...]

    def as_prompt(self) -> TokensPrompt:
        """Return it as `LLM.generate` takes it."""
        return {"prompt_token_ids": self.context, "continuations": self.continuations}


def scoring_prompts(windows: Iterable[Window]) -> list[ScoringPrompt]:
    """Return the prompts of these windows: of those with one context it is computed once."""
    by_context: dict[Ids, list[tuple[int, Ids]]] = {}
    for place, window in enumerate(windows):
        by_context.setdefault(window.context, []).append((place, window.continuation))
    prompts = []
    for context, asked in by_context.items():
        for first in range(0, len(asked), MAX_N):
            some = asked[first : first + MAX_N]
            places, continuations = zip(*some, strict=True)
            prompts.append(ScoringPrompt(context, places, continuations))
    return prompts
