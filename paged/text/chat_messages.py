"""Messages of a chat, in the form that chat templates read."""

from pagedrun.paged.values.errors import RowError

_OPEN_END = "<the answer goes on here> "  # at the end of a message; whoever trims takes the blank


def checked_messages(messages: object) -> list[dict[str, object]]:
    """Return messages as role and text, parts of type "text" joined by newlines.

    Raises `RowError` (`unsupported_content`) for what is no list of them.
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
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(_text_of(part, where) for part in content)
        elif content is not None and not isinstance(content, str):
            raise RowError("unsupported_content", f"{where}.content must be text", param=where)
        chat.append({**message, "content": content})
    return chat


def with_open_end(message: dict[str, object]) -> dict[str, object]:
    """Return a message whose end can be found in the text of its chat."""
    if not isinstance(message["content"], str):
        raise RowError("unsupported_content", "the last message has no text", param="messages")
    return {**message, "content": message["content"] + _OPEN_END}


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


def _text_of(part: object, where: str) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise RowError(
            "unsupported_content",
            f"{where}.content holds a part that is not text; pagedrun runs text models only",
            param=where,
        )
    return text
