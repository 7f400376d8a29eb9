"""Prompts of file rows and of Python calls: a text, a chat or token ids, with the fields beside it.

A text is one user message if the model has a chat template. It is raw, completed unchanged, with
the setting `raw`, without a template, or if continuations are scored after it. With a system prompt
it is always a user message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from pagedrun.paged.text.chat_messages import SYSTEM_ROLES, parse_messages
from pagedrun.paged.text.prompt import (
    CONTINUATIONS,
    NOT_LISTS,
    PRIORITY,
    RAW,
    TEMPLATE_KWARGS,
    TOKEN_IDS,
    Prompt,
    TokenizerLike,
    checked_token_ids,
    parse_continuations,
    parse_priority,
    parse_raw,
    parse_template_kwargs,
    present,
    require_unicode,
)
from pagedrun.paged.text.reasoning import check_budget
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.json_value import JSONValue, plain
from pagedrun.paged.values.prompt_input import ChatMessage
from pagedrun.paged.values.sampling_params import SamplingParams

PROMPT_FORMS = ("prompt", "messages", TOKEN_IDS)
_KEYS = (*PROMPT_FORMS, CONTINUATIONS, PRIORITY, RAW, TEMPLATE_KWARGS)


class PromptReader:
    """Parses prompts, and renders those that are chats.

    Args:
        time: Clock of the chat template, the same for all prompts; None for the present.
        raw: Setting of texts that have no `raw` of their own.
        system: System prompt of chats without one.
        variables: Variables of the chat template in prompts without their own.
        untrusted: Restrict chats to known roles and fields, see `parse_messages`.
    """

    def __init__(
        self,
        tokenizer: TokenizerLike,
        time: datetime | None = None,
        *,
        raw: bool = False,
        system: str | None = None,
        variables: Mapping[str, JSONValue] | None = None,
        untrusted: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._time = time or present()
        self._raw = raw
        self._system = system
        self._variables = variables or {}
        self._is_untrusted = untrusted

    def read(self, given: object, params: SamplingParams) -> Prompt:
        """Return the prompt of a text, token ids, messages, or a mapping with one of them.

        Raises `RowError` if it is invalid.
        """
        check_budget(params, self._tokenizer.chat_template)
        fields = given if isinstance(given, Mapping) else {_form_of(given): given}
        form = _only_form(fields)
        continuations = parse_continuations(fields.get(CONTINUATIONS), params)
        priority = parse_priority(fields.get(PRIORITY))
        prompt = self._prompt(form, fields, params, is_scored=bool(continuations))
        return replace(prompt, priority=priority).with_continuations(continuations)

    def _prompt(
        self, form: str, fields: Mapping[str, Any], params: SamplingParams, *, is_scored: bool
    ) -> Prompt:
        value, raw = fields[form], parse_raw(fields.get(RAW))
        own = template_variables(fields.get(TEMPLATE_KWARGS))
        variables = own or self._variables
        if form == "messages":
            return self._of_messages(value, params, variables, raw)
        is_text = form == "prompt"
        is_raw = is_text and self._is_raw(raw, is_scored=is_scored)
        if own and (is_raw or not is_text):
            message = f"{TEMPLATE_KWARGS} apply to chats, but the prompt is not a chat"
            raise RowError("invalid_param", message, param=TEMPLATE_KWARGS)
        if not is_text:
            if self._system is not None:
                message = f"{TOKEN_IDS} cannot be combined with {option('system')}"
                raise RowError("unsupported_content", message, param=TOKEN_IDS)
            return Prompt(params, token_ids=checked_token_ids(value))
        if not isinstance(value, str):
            raise RowError("unsupported_content", "prompt must be a string", param="prompt")
        if is_raw:
            return Prompt(params, text=value)
        return self._as_user_message(value, params, variables)

    def _is_raw(self, raw: bool | None, *, is_scored: bool) -> bool:
        """Return true if a text is completed unchanged; raw: its own setting, if it has one."""
        if self._system is not None:
            return False
        asked = self._raw if raw is None else raw
        return asked or is_scored or self._tokenizer.chat_template is None

    def _of_messages(
        self,
        value: object,
        params: SamplingParams,
        variables: Mapping[str, JSONValue],
        raw: bool | None,
    ) -> Prompt:
        messages: Any = value
        if self._is_untrusted:
            messages = parse_messages(value)
        elif isinstance(value, Sequence):
            messages = list(value)
        if raw:
            raise RowError(
                "invalid_param",
                f"{RAW} applies to texts, but messages are a chat; leave out one of them",
                param=RAW,
            )
        return self._chat(messages, params, variables)

    def _as_user_message(
        self, text: str, params: SamplingParams, variables: Mapping[str, JSONValue]
    ) -> Prompt:
        require_unicode(text)
        if not text and self._system is None:
            raise RowError("empty_prompt", "the prompt is empty", param="prompt")
        try:
            return self._chat([{"role": "user", "content": text}], params, variables)
        except RowError as error:
            if self._system is not None:
                raise
            message = f"{error.marked}; {option(RAW)} completes prompts without a chat template"
            raise RowError(error.code, message, param="prompt") from error

    def _chat(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams,
        variables: Mapping[str, JSONValue],
    ) -> Prompt:
        if self._system is not None and not any(
            message["role"] in SYSTEM_ROLES for message in messages
        ):
            messages = [{"role": "system", "content": self._system}, *messages]
        text = self._tokenizer.render_chat(messages, variables, time=self._time)
        return Prompt(params, text=text, add_special_tokens=False)


def template_variables(given: object) -> dict[str, JSONValue]:
    """Return variables for a chat template, none if `given` is None; raises `RowError`."""
    if given is None:
        return {}
    try:
        return parse_template_kwargs(plain(given))
    except (TypeError, RecursionError) as error:
        message = f"{TEMPLATE_KWARGS} must be representable in JSON ({error})"
        raise RowError("invalid_param", message, param=TEMPLATE_KWARGS) from error


def is_one_prompt(given: object) -> bool:
    """Return true if this is a prompt by itself rather than several."""
    if isinstance(given, str | Mapping):
        return True
    return isinstance(given, Sequence) and bool(given) and (type(given[0]) is int or is_chat(given))


def is_chat(given: object) -> bool:
    """Return true if this is a list of messages: the first has a role, which no prompt has."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        return False
    return isinstance(given[0], Mapping) and "role" in given[0]


def _form_of(given: object) -> str:
    """Return the key of this prompt in a mapping."""
    if isinstance(given, str):
        return "prompt"
    if isinstance(given, Sequence) and not isinstance(given, NOT_LISTS):
        return "messages" if given and isinstance(given[0], Mapping) else TOKEN_IDS
    raise RowError(
        "unsupported_content",
        "a prompt must be a text, a list of token ids, a list of messages, or a mapping that has "
        f"one of {', '.join(PROMPT_FORMS)}, not {type(given).__name__}",
        param="prompt",
    )


def _only_form(fields: Mapping[str, object]) -> str:
    """Return the only form of prompt in a mapping; `RowError` for several and for unknown keys."""
    for key in fields:
        if key not in _KEYS:
            raise RowError(
                "invalid_param",
                f"a prompt has no key {key!r}; it may have {', '.join(_KEYS)}",
                param=str(key),
            )
    forms = [name for name in PROMPT_FORMS if fields.get(name) is not None]
    if not forms:
        message = f"a prompt must have one of {', '.join(PROMPT_FORMS)}"
        raise RowError("missing_prompt", message, param="prompt")
    if len(forms) > 1:
        message = f"{' and '.join(forms)} exclude each other"
        raise RowError("ambiguous_prompt", message, param=forms[1])
    return forms[0]


class PromptMode(StrEnum):
    """Reading of prompts: as chats by the chat template, or raw. A file may have both."""

    CHAT = "chat"
    RAW = "raw"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class PromptModes:
    """Numbers of rows read as chats and raw.

    `chat_template` names the template, `why_raw` the reason of plain prompts without it, None if
    they use it.
    """

    num_chat: int
    num_raw: int
    chat_template: str
    why_raw: str | None

    @property
    def mode(self) -> PromptMode:
        """Mode of all rows, or `MIXED`."""
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
