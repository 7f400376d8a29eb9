"""Request and Completion: what is asked of the engine, and what it answers."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.option_names import option
from pagedrun.paged.values.sampling import SamplingParams


class FinishReason(StrEnum):
    """Why a sample ended, in the words of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt with its parameters.

    `index` is the row's place in the input. It keys the random stream, so that a row draws the
    same numbers wherever and whenever it runs. `bad_words_ids` are the token ids of
    `params.bad_words`, each word as often as there are ways to write it.
    """

    index: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    bad_words_ids: tuple[tuple[int, ...], ...] = ()

    @property
    def max_num_tokens(self) -> int:
        """Tokens whose keys and values may have to be stored; the last one's never are."""
        return len(self.prompt_token_ids) + self.params.max_tokens - 1

    def fitted(self, max_model_len: int, vocab_size: int) -> "Request":
        """Return the request with `max_tokens` cut to the room that the prompt leaves.

        Raises `RowError` if the prompt is empty, leaves no room for a single token, or if an id
        is outside the vocabulary: nothing unchecked may reach a kernel.
        """
        length = len(self.prompt_token_ids)
        if length == 0:
            raise RowError("empty_prompt", "the prompt has no tokens", param="prompt")
        if length >= max_model_len:
            raise RowError(
                "prompt_too_long",
                f"the prompt has {length} tokens and its answer needs at least one, but "
                f"{option('max_model_len')} is {max_model_len}",
                param="prompt",
            )
        self._check_ids(vocab_size)
        room = max_model_len - length
        if self.params.max_tokens <= room:
            return self
        min_tokens = min(self.params.min_tokens, room)
        return replace(self, params=replace(self.params, max_tokens=room, min_tokens=min_tokens))

    def _check_ids(self, vocab_size: int) -> None:
        """Raise `RowError` for an id outside the vocabulary, wherever the request has one."""
        by_param = {
            "prompt_token_ids": self.prompt_token_ids,
            **self.params.token_ids(),
            "bad_words": tuple(chain.from_iterable(self.bad_words_ids)),
        }
        for param, ids in by_param.items():
            if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
                raise RowError(
                    "token_id_out_of_range",
                    f"{param} holds an id outside the model's vocabulary, 0 to {vocab_size - 1}",
                    param=param,
                )


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """One of a request's `params.n` answers."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """All answers to one request, or the reason why there are none.

    `num_cached_tokens` counts prompt tokens whose keys and values were taken from the cache. A
    duplicate was answered with what another request got; `num_copied_tokens` are the generated
    tokens of its outputs, or of a request's own, that were not computed for them.
    """

    request: Request
    outputs: tuple[SampleOutput, ...] = ()
    num_cached_tokens: int = 0
    error: RowError | None = field(default=None)
    is_duplicate: bool = False
    num_copied_tokens: int = 0
