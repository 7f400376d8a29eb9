"""Reasoning in answers: its tags, its progress token by token, and its token budget.

Models with `<|channel|>` tokens mark it by messages instead of tags; see `channels`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagedrun.paged.text.channels import has_channels
from pagedrun.paged.text.incremental_text import REPLACEMENT, IncrementalText
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.sampling_params import SamplingParams

AUTO, NONE = "auto", "none"
_KNOWN = (
    ("<think>", "</think>"),  # Qwen3, DeepSeek-R1 and most others
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|channel>thought", "<channel|>"),  # Gemma 4
)


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """Tags of reasoning: `opening`, in the answer or at the prompt's end, and `closing`."""

    opening: str
    closing: str

    @classmethod
    def of(cls, setting: str, chat_template: str | None) -> "ReasoningTags | None":
        """Return the tags of a `reasoning_tags` setting, None without reasoning.

        `auto` takes known ones if the chat template has the closing one.
        """
        if setting == NONE:
            return None
        if setting == AUTO:
            known = (cls(*pair) for pair in _KNOWN if pair[1] in (chat_template or ""))
            return next(known, None)
        opening, closing = setting.split(",")
        return cls(opening, closing)

    @property
    def most_tokens(self) -> int:
        """Tokens needed of a prompt's end to find a tag, blanks behind it included."""
        return max(len(self.opening.encode()), len(self.closing.encode())) + 8

    def opened_by(self, prompt: str) -> bool:
        """Return true if an answer to a prompt with this end begins within reasoning."""
        return prompt.rstrip().endswith(self.opening)

    def closed_by(self, prompt: str) -> bool:
        """Return true if a prompt with this end has closed reasoning."""
        return prompt.rstrip().endswith(self.closing)

    def split(self, text: str, prompt: str, *, must_open: bool = False) -> tuple[str | None, str]:
        """Return the reasoning, None without any, and the answer without it.

        Reasoning is at the beginning of the text; without an opening tag it is the text before a
        closing one, unless it `must_open`. Unclosed reasoning leaves no answer. `prompt` is the end
        of the prompt: if that closes reasoning, there is no other.
        """
        if self.closed_by(prompt):
            return None, text
        body = text.lstrip()
        begins = body.startswith(self.opening)
        is_open = begins or self.opened_by(prompt)
        if begins:
            body = body[len(self.opening) :]
        thought, closing, answer = body.partition(self.closing)
        if not closing:
            return (thought.strip(), "") if is_open else (None, text)
        if not is_open and (must_open or self.opening in thought):
            return None, text
        return thought.strip(), answer.lstrip()


def check_budget(params: SamplingParams, chat_template: str | None) -> None:
    """Raise `RowError` (`invalid_param`) for a reasoning budget without reasoning tags."""
    if params.thinking_budget is None:
        return
    setting = params.reasoning_tags
    if setting == AUTO and has_channels(chat_template):
        return
    if ReasoningTags.of(setting, chat_template) is None:
        raise RowError(
            "invalid_param",
            "thinking_budget needs reasoning tags, but the chat template has none that are "
            f"known; pass {option('reasoning_tags')}",
            param="thinking_budget",
        )


class ReasoningState(Protocol):
    """State of reasoning before an answer, token by token.

    `is_open` and `is_over` are both false while it may begin.
    """

    @property
    def tags(self) -> ReasoningTags | None:
        """Tags of the reasoning; None for channels."""
        ...

    @property
    def end(self) -> str:
        """End of the text so far, at least as long as both tags."""
        ...

    @property
    def is_open(self) -> bool:
        """True if the next token belongs to the reasoning or its closing tag."""
        ...

    @property
    def is_over(self) -> bool:
        """True if the reasoning has ended or can no longer begin."""
        ...

    @property
    def is_counted(self) -> bool:
        """True if the next token counts against a budget."""
        ...

    def take(self, token_id: int) -> None:
        """Add the next token of the answer."""
        ...


class TaggedReasoning:
    """Reasoning between tags at the beginning of an answer, or none; see `ReasoningState`."""

    def __init__(
        self, tags: ReasoningTags, decode: Callable[[list[int]], str], *, is_open: bool
    ) -> None:
        """is_open: true if the prompt has the opening tag."""
        self.tags = tags
        self.is_open = is_open
        self.is_over = False
        self.end = ""
        self._text = IncrementalText(decode, len(tags.opening) + len(tags.closing))

    @property
    def is_counted(self) -> bool:
        """True if the next token is reasoning; the opening tag is not."""
        return self.is_open

    def take(self, token_id: int) -> None:
        """Add the next token of the answer."""
        self.end = self._text.feed([token_id])
        if not self.is_open:
            beginning = self.end.lstrip().rstrip(REPLACEMENT)  # of an incomplete character
            self.is_open = beginning.startswith(self.tags.opening)
            self.is_over = not (self.is_open or self.tags.opening.startswith(beginning))
        if self.is_open and self.tags.closing in self.end:
            self.is_open, self.is_over = False, True


class ReasoningBudget:
    """Limit of reasoning tokens.

    `forced` is the required next token, None for any: after `budget` tokens of reasoning, its
    opening tag not counted, these are the `closing` ones.
    """

    def __init__(self, thought: ReasoningState, closing: Sequence[int], budget: int) -> None:
        self._thought = thought
        self._closing = closing
        self._num_left = budget
        self._num_forced = 0
        self.forced: int | None = None
        self._force_closing()

    def take(self, token_id: int) -> bool:
        """Add the next token; return whether reasoning goes on, or may still begin."""
        if self.forced is not None:
            self._num_forced += 1
        elif self._thought.is_counted:
            self._num_left -= 1
        self._thought.take(token_id)
        if self._thought.is_over or self._num_forced == len(self._closing):
            return False
        self._force_closing()
        return True

    def _force_closing(self) -> None:
        if self._num_forced or (self._thought.is_counted and not self._num_left):
            self.forced = self._closing[self._num_forced]
