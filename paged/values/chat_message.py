"""ChatMessage: one message of a chat, in the form that chat templates read."""

from typing import NotRequired, TypedDict

from pagedrun.paged.values.json_value import JSONValue


class ChatMessage(TypedDict):
    """Who says what; `name` tells speakers of one role apart.

    `reasoning` is the thought before an answer, `tool_calls` are what an answer calls, beside its
    text or without one; `tool_call_id` says which call a tool's message answers.
    """

    role: str
    content: NotRequired[str]
    name: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[JSONValue]]
    tool_call_id: NotRequired[str]
