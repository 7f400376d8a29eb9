"""Messages of a chat, in the form that chat templates read."""

from pagedrun.paged.text.tool_calls import parse_tool_calls
from pagedrun.paged.values.errors import RowError

# What a message's thought is called; templates read the first, and those of gpt-oss the second.
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_OPEN_END = "<the answer goes on here> "  # at the end of a message; whoever trims takes the blank


def checked_messages(messages: object) -> list[dict[str, object]]:
    """Return messages with their text, parts of type "text" joined by newlines.

    As in Transformers, what is null is left out, and a thought is there under every name that
    templates read. Arguments of tool calls are objects. Raises `RowError` (`unsupported_content`)
    for what is no list of messages.
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


def with_open_end(message: dict[str, object]) -> dict[str, object]:
    """Return a message whose end can be found in the text of its chat."""
    content = message.get("content")
    if not isinstance(content, str):
        raise RowError("unsupported_content", "the last message has no text", param="messages")
    return {**message, "content": content + _OPEN_END}


def up_to_open_end(text: str) -> str:
    """Return the text of a chat up to where its last message ends.

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
        message["content"] = "\n".join(_text_of(part, where) for part in content)
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
