"""Prompt: what one row asks, as text or as token ids."""

from dataclasses import dataclass, replace

from pagedrun.paged.text.prompts.continuations import GivenContinuation, split_trailing_space
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt before encoding: exactly one of `text` and `token_ids` is set.

    A chat is rendered with its special tokens in the text, so none are added when encoding it.
    `continuations` are to be scored behind it: all are texts, each after `space`, which was cut
    off the prompt's end, or all are token ids. Those with a lower `priority` run earlier.
    """

    params: SamplingParams
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    add_special_tokens: bool = True
    continuations: tuple[GivenContinuation, ...] = ()
    space: str = ""
    priority: int = 0

    @property
    def is_chat(self) -> bool:
        """Whether a chat template made it."""
        return not self.add_special_tokens

    def followed_by(self, continuations: tuple[GivenContinuation, ...]) -> "Prompt":
        """Return the prompt with what is to be scored behind it, itself if there is nothing."""
        if not continuations:
            return self
        if self.text is None or not isinstance(continuations[0], str):
            return replace(self, continuations=continuations)
        text, space = split_trailing_space(self.text)
        return replace(self, text=text, continuations=continuations, space=space)


def require_unicode(text: str, param: str = "prompt") -> None:
    """Raise `RowError` (`invalid_unicode`) if `text` cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowError(
            "invalid_unicode",
            f"{param} has half of a surrogate pair at character {error.start}, which is not "
            "valid text; escape the character as a whole pair",
            param=param,
        ) from error
