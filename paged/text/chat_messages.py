"""Chat messages: validation of a row's messages, and their form in chat templates.

Roles, text and tool calls are checked strictly, because a role becomes part of the chat's markup,
which the model obeys. Tool calls have their arguments as JSON text in OpenAI's messages, while chat
templates iterate over objects. A content may be a list of text parts: they are kept for templates
that walk them, and joined by newlines for the others.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.prompt_input import ChatMessage

SYSTEM_ROLES = ("system", "developer")
# Roles become part of the chat's markup, so only known ones are accepted.
ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool")
_IMAGES = ("image", "image_url", "input_image")
_KEYS = ("role", "content", "name")
MAX_SHOWN_NAME = 40

# Names of a message's reasoning; templates read the first, those of gpt-oss the second.
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")

# Keys of OpenAI's responses that have no part in a prompt. Others are ignored if they are empty.
_IGNORED = ("annotations", "id")
_INSTEAD = {"function_call": "give it as one of tool_calls", "refusal": "give its text as content"}

_KEYS_OF_ROLE = {"assistant": ("tool_calls", *REASONING_KEYS), "tool": ("tool_call_id",)}


def parse_messages(value: object) -> list[ChatMessage]:
    """Return the messages as role and text, parts of type "text" joined by newlines.

    A message of the assistant may have tool calls instead, and reasoning. Raises `RowError`:
    `empty_prompt` without messages, `unsupported_content` for anything but a list of known roles
    with text (images, null), or without a user message.
    """
    if not isinstance(value, list):
        raise _unsupported("messages must be a list")
    if not value:
        raise RowError("empty_prompt", "messages is empty", param="messages")
    messages = [_parsed_message(item, index) for index, item in enumerate(value)]
    if not any(message["role"] == "user" for message in messages):
        raise _unsupported("messages has no user message")
    return messages


def _parsed_message(item: object, index: int) -> ChatMessage:
    where = f"messages[{index}]"
    if not isinstance(item, dict):
        raise _unsupported(f"{where} must be an object")
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _unsupported(f"{where}.role must be one of {', '.join(ROLES)}")
    known = (*_KEYS, *_KEYS_OF_ROLE.get(role, ()))
    for key, value in item.items():
        if key not in known and key not in _IGNORED and value not in (None, [], {}, ""):
            raise _unsupported(_unknown(f"{where}.{_shown(key)}", _INSTEAD.get(key), known))
    message = ChatMessage(role=role)
    if item.get("tool_calls"):
        message["tool_calls"] = parse_tool_calls(item["tool_calls"], where)
    content = item.get("content")
    if content is not None or not _may_be_null(item):
        message["content"] = _text(content, f"{where}.content")
    if isinstance(content, list):
        message["content_parts"] = [_part(part["text"]) for part in content]
    if isinstance(name := item.get("name"), str):
        message["name"] = name
    if isinstance(call := item.get("tool_call_id"), str):
        message["tool_call_id"] = call
    reasoning = next((item[key] for key in REASONING_KEYS if item.get(key) is not None), None)
    if reasoning is not None:
        message["reasoning"] = _text(reasoning, f"{where}.reasoning")
    return message


def _may_be_null(item: Mapping[str, object]) -> bool:
    """Return true if a message is complete without content: with tool calls, or a thought."""
    if item.get("role") != "assistant":
        return False
    return bool(item.get("tool_calls")) or any(item.get(key) for key in REASONING_KEYS)


def _unknown(where: str, instead: str | None, known: Sequence[str]) -> str:
    return f"{where} is not supported; {instead or 'a message may have ' + ', '.join(known)}"


def _shown(key: str) -> str:
    """Return a field's name for a message: short, and printable."""
    name = key if len(key) <= MAX_SHOWN_NAME else f"{key[:MAX_SHOWN_NAME]}…"
    return name if name.isprintable() else ascii(name)


def _part(text: str) -> dict[str, JSONValue]:
    return {"type": "text", "text": text}


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        texts = [
            part["text"]
            for part in content
            if isinstance(part, dict)
            and part.get("type") == "text"
            and isinstance(part.get("text"), str)
        ]
        if len(texts) == len(content):
            return "\n".join(texts)
        kinds = [part.get("type") for part in content if isinstance(part, dict)]
        if any(kind in _IMAGES for kind in kinds):
            raise _unsupported(
                f"{where} has an image, but pagedrun reads only the text of a chat, even with "
                "vision models"
            )
    found = " is null; it" if content is None else ""
    raise _unsupported(f"{where}{found} must be text, or a list of text parts")


def _unsupported(reason: str) -> RowError:
    return RowError("unsupported_content", reason, param="messages")


def parse_tool_calls(value: object, where: str) -> list[JSONValue]:
    """Return the calls of a message, their arguments as objects.

    OpenAI's messages have arguments as JSON text, while templates iterate over objects. A call is
    an object with a `function`, or such a function itself; other keys are kept. Raises `RowError`
    (`unsupported_content`), which names the message as `where`.
    """
    if not isinstance(value, list) or not value:
        raise _unsupported(f"{where}.tool_calls must be a list of at least one call")
    return [_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(value)]


def _call(call: object, where: str) -> JSONValue:
    if not isinstance(call, dict):
        raise _unsupported(f"{where} must be an object")
    if "function" not in call:
        return _function(call, where)
    return {**call, "function": _function(call["function"], f"{where}.function")}


def _function(function: object, where: str) -> dict[str, JSONValue]:
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _unsupported(f"{where} must be an object with a name")
    return {**function, "arguments": _arguments(function.get("arguments"), where)}


def _arguments(value: object, where: str) -> dict[str, JSONValue]:
    """Return an object, empty without arguments."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):  # invalid JSON is refused below
            value = json.loads(value or "{}")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _unsupported(f"{where}.arguments must be an object, or the JSON text of one")
    return value


_OPEN_END = "<the answer goes on here> "  # at the end of a message; trimming removes only the blank


def checked_messages(messages: object) -> list[dict[str, object]]:
    """Return messages with their text, parts of type "text" joined by newlines.

    The parts themselves are under `content_parts`, to be removed before rendering. As in
    Transformers, null values are dropped, and reasoning is present under every name that templates
    read. Arguments of tool calls are objects. Raises `RowError` (`unsupported_content`)
    for anything but a list of messages.
    """
    if not isinstance(messages, list) or not messages:
        raise RowError(
            "unsupported_content", "messages must be a list of at least one", param="messages"
        )
    chat = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RowError(
                "unsupported_content", f"{where} must be an object with a role", param=where
            )
        chat.append(_message(message, where))
    return chat


def mark_end(message: dict[str, object]) -> dict[str, object]:
    """Return a message with a mark at its end, to find that in the text of its chat."""
    content = message.get("content")
    if not isinstance(content, str):
        raise RowError("unsupported_content", "the last message has no text", param="messages")
    return {**message, "content": content + _OPEN_END}


def cut_at_mark(text: str) -> str:
    """Return the text of a chat up to the mark of its last message.

    A template that trims messages would have trimmed this one too.
    """
    whole, mark, _ = text.rpartition(_OPEN_END)
    if mark:
        return whole
    trimmed, mark, _ = text.rpartition(_OPEN_END.strip())
    if not mark:
        raise RowError(
            "template_error", "the chat template leaves out the last message", param="messages"
        )
    return trimmed.rstrip()


def _message(given: dict[str, object], where: str) -> dict[str, object]:
    message = {key: value for key, value in given.items() if value is not None}
    content = message.get("content")
    if isinstance(content, list):
        texts = [_text_of(part, where) for part in content]
        message["content"] = "\n".join(texts)
        message["content_parts"] = [_part(text) for text in texts]
    elif content is not None and not isinstance(content, str):
        raise RowError("unsupported_content", f"{where}.content must be text", param=where)
    if "tool_calls" in message:
        message["tool_calls"] = parse_tool_calls(message["tool_calls"], where)
    reasoning = next((message[key] for key in REASONING_KEYS if key in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _text_of(part: object, where: str) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise RowError(
            "unsupported_content",
            f"{where}.content has a part that is not text; pagedrun supports text only",
            param=where,
        )
    return text
