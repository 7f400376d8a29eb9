"""Calls of tools in the messages of a chat, in the form that chat templates read."""

import json
from contextlib import suppress

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue


def parse_tool_calls(value: object, where: str) -> list[JSONValue]:
    """Return the calls of a message, their arguments as objects.

    OpenAI's messages have arguments as JSON text, while templates walk through them. A call is an
    object with a `function`, or such a function itself; what else it holds is kept. Raises
    `RowError` (`unsupported_content`), which names the message as `where`.
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
    """Return an object, empty for none at all."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):  # what is no JSON is no object either
            value = json.loads(value or "{}")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _unsupported(f"{where}.arguments must be an object, or the JSON text of one")
    return value


def _unsupported(reason: str) -> RowError:
    return RowError("unsupported_content", reason, param="messages")
