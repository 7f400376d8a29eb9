"""Chat messages of a row, checked: roles, text, calls of tools; nothing a template could obey."""

from pagedrun.paged.text.chat_messages import REASONING_KEYS
from pagedrun.paged.text.prompts.prompt_renderer import SYSTEM_ROLES
from pagedrun.paged.text.tool_calls import parse_tool_calls
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.prompt_input import ChatMessage

# A role is part of the chat's markup, where whatever a row says would be obeyed.
ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool")
_IMAGES = ("image", "image_url", "input_image")
_KEYS = ("role", "content", "name")
_KEYS_OF_ROLE = {"assistant": ("tool_calls", *REASONING_KEYS), "tool": ("tool_call_id",)}


def parse_messages(value: object) -> list[ChatMessage]:
    """Return the messages as role and text, parts of type "text" joined by newlines.

    A message of the assistant may have called tools instead, and thought before. Raises `RowError`:
    `empty_prompt` for no message at all, `unsupported_content` for anything that is not a list of
    known roles with text (images, null), or asks nothing.
    """
    if not isinstance(value, list):
        raise _unsupported("messages must be a list")
    if not value:
        raise RowError("empty_prompt", "messages is empty", param="messages")
    messages = [_message(item, index) for index, item in enumerate(value)]
    if not any(message["role"] == "user" for message in messages):
        raise _unsupported("messages has no user message")
    return messages


def _message(item: object, index: int) -> ChatMessage:
    where = f"messages[{index}]"
    if not isinstance(item, dict):
        raise _unsupported(f"{where} must be an object")
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _unsupported(f"{where}.role must be one of {', '.join(ROLES)}")
    known = (*_KEYS, *_KEYS_OF_ROLE.get(role, ()))
    if any(key not in known and item[key] is not None for key in item):
        raise _unsupported(f"{where} has fields beyond {', '.join(known)}")
    message = ChatMessage(role=role)
    if item.get("tool_calls"):
        message["tool_calls"] = parse_tool_calls(item["tool_calls"], where)
    if item.get("content") is not None or "tool_calls" not in message:
        message["content"] = _text(item.get("content"), f"{where}.content")
    if isinstance(name := item.get("name"), str):
        message["name"] = name
    if isinstance(call := item.get("tool_call_id"), str):
        message["tool_call_id"] = call
    reasoning = next((item[key] for key in REASONING_KEYS if item.get(key) is not None), None)
    if reasoning is not None:
        message["reasoning"] = _text(reasoning, f"{where}.reasoning")
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
                f"{where} has an image, but pagedrun reads only the text of a chat, even with "
                "vision models"
            )
    raise _unsupported(f"{where} must be text, or a list of text parts")


def _unsupported(reason: str) -> RowError:
    return RowError("unsupported_content", reason, param="messages")
