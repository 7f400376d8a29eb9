"""Rendering of texts and chats as prompts, by the model's chat template or raw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from pagedrun.paged.text.prompt import Prompt, require_unicode
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.prompt_input import ChatMessage
from pagedrun.paged.values.sampling_params import SamplingParams

RAW = "raw"
SYSTEM_ROLES = ("system", "developer")


class PromptMode(StrEnum):
    """How prompts are read: as chats by the chat template, or raw. A file may have both."""

    CHAT = "chat"
    RAW = "raw"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class PromptModes:
    """Number of rows that are read as chats, and of those that are read raw.

    `chat_template` names the template, `why_raw` the reason why plain prompts do without it, None
    if they do not.
    """

    num_chat: int
    num_raw: int
    chat_template: str
    why_raw: str | None

    @property
    def mode(self) -> PromptMode:
        """The mode of all rows, or `MIXED`."""
        if not self.num_chat and (self.num_raw or self.why_raw is not None):
            return PromptMode.RAW
        return PromptMode.MIXED if self.num_raw else PromptMode.CHAT

    def __str__(self) -> str:
        because = "" if self.why_raw is None else f" ({self.why_raw})"
        if self.mode is PromptMode.CHAT:
            return self.chat_template
        if self.mode is PromptMode.RAW:
            return f"raw{because}"
        rows = f"{self.num_chat + self.num_raw:,} rows"
        chats = f"{self.chat_template} in {self.num_chat:,} of {rows}"
        return f"{chats}, raw in {self.num_raw:,}{because}"


class ChatRenderer(Protocol):
    """The part of a tokenizer that makes text of chats."""

    @property
    def chat_template(self) -> str | None:
        """Return the chat template in force, None without one."""

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        template_kwargs: Mapping[str, JSONValue] | None = None,
        *,
        time: datetime | None = None,
    ) -> str:
        """Return the chat as text; `RowError` (`template_error`) if the template refuses it.

        `template_kwargs` are variables of the template beside those that every chat has. `time` is
        what its clock says, None the present.
        """


class PromptRenderer:
    """Decides which prompts are chats, for rows of files and prompts from Python alike.

    A plain text is one user message where the model has a chat template. It is raw, completed as
    it stands, where `raw` asks for that, without a template, and where continuations are scored
    behind it. With `system` it is the user message after that in each case.
    """

    def __init__(
        self,
        tokenizer: ChatRenderer,
        time: datetime,
        *,
        raw: bool = False,
        system: str | None = None,
    ) -> None:
        """time: what the clock of the chat template says in all prompts."""
        self._tokenizer = tokenizer
        self._time = time
        self._raw = raw
        self._system = system

    def is_raw(self, raw: bool | None, *, is_scored: bool) -> bool:
        """Return whether a plain text is completed as it is.

        raw: what the prompt itself says, None for as all prompts. is_scored: whether it has
        continuations.
        """
        if self._system is not None:
            return False
        asked = self._raw if raw is None else raw
        return asked or is_scored or self._tokenizer.chat_template is None

    def text(
        self,
        text: str,
        params: SamplingParams,
        variables: Mapping[str, JSONValue],
        *,
        raw: bool | None,
        is_scored: bool,
    ) -> Prompt:
        """Return the prompt of a plain text; `variables` are for the chat template.

        Raises `RowError` for half a surrogate pair, and for what the template refuses.
        """
        if self.is_raw(raw, is_scored=is_scored):
            return Prompt(params, text=text)
        require_unicode(text)
        if not text and self._system is None:
            raise RowError("empty_prompt", "the prompt is empty", param="prompt")
        try:
            return self.chat([{"role": "user", "content": text}], params, variables)
        except RowError as error:
            if self._system is not None:
                raise
            message = f"{error.marked}; {option(RAW)} completes prompts without a chat template"
            raise RowError(error.code, message, param="prompt") from error

    def chat(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams,
        variables: Mapping[str, JSONValue],
        *,
        raw: bool | None = None,
    ) -> Prompt:
        """Return the prompt of a chat; raises `RowError` for one that is said to be raw."""
        if raw:
            raise RowError(
                "invalid_param",
                f"{RAW} applies to texts, but messages are a chat; leave out one of them",
                param=RAW,
            )
        if self._system is not None and not any(
            message["role"] in SYSTEM_ROLES for message in messages
        ):
            messages = [{"role": "system", "content": self._system}, *messages]
        text = self._tokenizer.render_chat(messages, variables, time=self._time)
        return Prompt(params, text=text, add_special_tokens=False)


def parse_raw(value: object) -> bool | None:
    """Return whether a prompt says that it is raw, None if it does not say.

    Raises `RowError` for anything but a boolean.
    """
    if value is None or isinstance(value, bool):
        return value
    raise RowError(
        "invalid_param",
        f"{RAW} must be true or false: whether the prompt is completed as it is, without the "
        f"chat template, as with {option(RAW)}; rename the column if it holds something else",
        param=RAW,
    )
