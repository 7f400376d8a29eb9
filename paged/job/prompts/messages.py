"""Chat messages of a row, checked: roles and text, and nothing that a template could obey."""

from pagedrun.paged.values.chat_message import ChatMessage
from pagedrun.paged.values.errors import RowError

SYSTEM_ROLES = ("system", "developer")
# A role is part of the chat's markup, where whatever a row says would be obeyed.
ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool")
_IMAGES = ("image", "image_url", "input_image")
_ALLOWED_KEYS = frozenset({"role", "content", "name"})


def parse_messages(value: object) -> list[ChatMessage]:
    """Return the messages as role and text, parts of type "text" joined by newlines.

    Raises `RowError`: `empty_prompt` for no message at all, `unsupported_content` for anything
    that is not a list of known roles with text (images, tool calls, null), or asks nothing.
    """
    if not isinstance(value, list):
        raise _unsupported("messages must be a list")
    if not value:
        raise RowError("empty_prompt", "messages is empty", param="messages")
    messages = [_message(item, index) for index, item in enumerate(value)]
    if not any(message["role"] == "user" for message in messages):
        raise _unsupported("messages has no message of the user")
    return messages


def with_system(messages: list[ChatMessage], system: str | None) -> list[ChatMessage]:
    """Return `messages` with the shared system text in front, unless they bring their own."""
    if system is None or any(message["role"] in SYSTEM_ROLES for message in messages):
        return messages
    return [{"role": "system", "content": system}, *messages]


def _message(item: object, index: int) -> ChatMessage:
    where = f"messages[{index}]"
    if not isinstance(item, dict):
        raise _unsupported(f"{where} must be an object")
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _unsupported(f"{where}.role must be one of {', '.join(ROLES)}")
    extra = [key for key in item if key not in _ALLOWED_KEYS and item[key] is not None]
    if extra:
        raise _unsupported(f"{where} has fields beyond role and content, such as tool calls")
    message = ChatMessage(role=role, content=_text(item.get("content"), where))
    name = item.get("name")
    if isinstance(name, str):
        message["name"] = name
    return message


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
                f"{where}.content has an image, but pagedrun reads the text of a chat only, also "
                "with models that see images"
            )
    raise _unsupported(f"{where}.content must be text, or a list of text parts")


def _unsupported(reason: str) -> RowError:
    return RowError("unsupported_content", reason, param="messages")
