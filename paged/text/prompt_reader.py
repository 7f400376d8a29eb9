"""Reader of prompts given from Python."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from datetime import datetime
from typing import Any

from pagedrun.paged.text.prompt import (
    CONTINUATIONS,
    NOT_LISTS,
    PRIORITY,
    TEMPLATE_KWARGS,
    TOKEN_IDS,
    Prompt,
    checked_kwargs,
    checked_token_ids,
    parse_continuations,
    parse_priority,
    present,
)
from pagedrun.paged.text.prompt_renderer import RAW, PromptRenderer, parse_raw
from pagedrun.paged.text.reasoning import check_budget
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue, plain
from pagedrun.paged.values.sampling_params import SamplingParams

_FORMS = ("prompt", TOKEN_IDS, "messages")
_KEYS = (*_FORMS, CONTINUATIONS, PRIORITY, RAW, TEMPLATE_KWARGS)


class PromptReader:
    """Tells the forms of `PromptInput` apart, and refuses what is none of them."""

    def __init__(
        self, tokenizer: Tokenizer, time: datetime | None = None, *, raw: bool = False
    ) -> None:
        """time: what the clock of the chat template says in all prompts; None for the present.
        raw: complete texts as they are, those that do not say for themselves."""
        self._tokenizer = tokenizer
        self._renderer = PromptRenderer(tokenizer, time or present(), raw=raw)

    def read(self, given: object, params: SamplingParams) -> Prompt:
        """Return what a prompt asks, a chat rendered; raises `RowError` if it cannot be asked."""
        check_budget(params, self._tokenizer.chat_template)
        fields = given if isinstance(given, Mapping) else {_form(given): given}
        _check_keys(fields)
        continuations = parse_continuations(fields.get(CONTINUATIONS), params)
        prompt = self._prompt(fields, params, is_scored=bool(continuations))
        prompt = replace(prompt, priority=parse_priority(fields.get(PRIORITY)))
        return prompt.followed_by(continuations)

    def _prompt(
        self, fields: Mapping[str, Any], params: SamplingParams, *, is_scored: bool
    ) -> Prompt:
        raw, variables = parse_raw(fields.get(RAW)), template_variables(fields.get(TEMPLATE_KWARGS))
        text, messages = fields.get("prompt"), fields.get("messages")
        if messages is not None:
            messages = list(messages) if isinstance(messages, Seq) else messages
            return self._renderer.chat(messages, params, variables, raw=raw)
        if variables and (text is None or self._renderer.is_raw(raw, is_scored=is_scored)):
            message = f"{TEMPLATE_KWARGS} apply to chats, but the prompt is not a chat"
            raise RowError("invalid_param", message, param=TEMPLATE_KWARGS)
        if text is None:
            return Prompt(params, token_ids=checked_token_ids(fields[TOKEN_IDS]))
        if not isinstance(text, str):
            raise RowError("unsupported_content", "prompt must be a text", param="prompt")
        return self._renderer.text(text, params, variables, raw=raw, is_scored=is_scored)


def template_variables(given: object) -> dict[str, JSONValue]:
    """Return variables for a chat template, none if `given` is None; raises `RowError`."""
    if given is None:
        return {}
    try:
        return checked_kwargs(plain(given))
    except (TypeError, RecursionError) as error:
        message = f"{TEMPLATE_KWARGS} must be representable in JSON ({error})"
        raise RowError("invalid_param", message, param=TEMPLATE_KWARGS) from error


def is_one_prompt(given: object) -> bool:
    """Return whether this is a prompt by itself rather than several."""
    if isinstance(given, str | Mapping):
        return True
    return isinstance(given, Seq) and bool(given) and (type(given[0]) is int or is_chat(given))


def is_chat(given: object) -> bool:
    """Return whether this is a list of messages: the first has a role, which no prompt has."""
    if isinstance(given, str) or not isinstance(given, Seq) or not given:
        return False
    return isinstance(given[0], Mapping) and "role" in given[0]


def _form(given: object) -> str:
    """Return the key under which a mapping would have this."""
    if isinstance(given, str):
        return "prompt"
    if isinstance(given, Seq) and not isinstance(given, NOT_LISTS):
        return "messages" if given and isinstance(given[0], Mapping) else TOKEN_IDS
    raise RowError(
        "unsupported_content",
        "a prompt must be a text, a list of token ids, a list of messages, or a mapping that has "
        f"one of {', '.join(_FORMS)}, not {type(given).__name__}",
        param="prompt",
    )


def _check_keys(fields: Mapping[object, object]) -> None:
    """Raise `RowError` unless a mapping has the prompt in one form, and nothing unknown."""
    for key in fields:
        if key not in _KEYS:
            raise RowError(
                "invalid_param",
                f"a prompt has no key {key!r}; it may have {', '.join(_KEYS)}",
                param=str(key),
            )
    forms = [name for name in _FORMS if fields.get(name) is not None]
    if not forms:
        message = f"a prompt must have one of {', '.join(_FORMS)}"
        raise RowError("missing_prompt", message, param="prompt")
    if len(forms) > 1:
        message = f"{' and '.join(forms)} exclude each other"
        raise RowError("ambiguous_prompt", message, param=forms[1])
