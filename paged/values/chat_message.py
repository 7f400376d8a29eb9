"""ChatMessage: one message of a chat, in the form that chat templates read."""

from typing import NotRequired, TypedDict


class ChatMessage(TypedDict):
    """Who says what; `name` tells speakers of one role apart.

    `reasoning` is the thought before an answer; no row's message has it.
    """

    role: str
    content: str
    name: NotRequired[str]
    reasoning: NotRequired[str]
