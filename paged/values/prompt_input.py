"""Forms of prompts: those accepted from Python, and messages of a chat."""

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from pagedrun.paged.values.json_value import JSONValue

ContinuationsInput = Sequence[str] | Sequence[Sequence[int]]
"""Continuations of a prompt to score: texts, or lists of token ids."""


class TextPrompt(TypedDict):
    """Text: one user message if the model has a chat template and it is not `raw`.

    Raw texts get the tokenizer's special tokens and take no `chat_template_kwargs`.
    """

    prompt: str
    raw: NotRequired[bool]
    chat_template_kwargs: NotRequired[Mapping[str, JSONValue]]
    continuations: NotRequired[ContinuationsInput]
    priority: NotRequired[int]


class TokensPrompt(TypedDict):
    """Token ids, used unchanged."""

    prompt_token_ids: Sequence[int]
    continuations: NotRequired[ContinuationsInput]
    priority: NotRequired[int]


class ChatPrompt(TypedDict):
    """Messages of a chat, and variables for its template."""

    messages: Sequence[Mapping[str, object]]
    chat_template_kwargs: NotRequired[Mapping[str, JSONValue]]
    continuations: NotRequired[ContinuationsInput]
    priority: NotRequired[int]


Conversation = Sequence[Mapping[str, object]]
"""The messages of a chat, each with `role` and `content`."""

PromptInput = str | Sequence[int] | Conversation | TextPrompt | TokensPrompt | ChatPrompt
"""Text, token ids, messages of a chat, or a mapping with one of these."""


class ChatMessage(TypedDict):
    """Message of a chat; `name` distinguishes speakers of one role.

    `content_parts`: parts of the content, where it was a list of texts; `content` has them joined.
    `reasoning`: thought before an answer. `tool_calls`: calls made by an answer, with or without
    text. `tool_call_id`: the call that a tool's message answers.
    """

    role: str
    content: NotRequired[str]
    content_parts: NotRequired[list[JSONValue]]
    name: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[JSONValue]]
    tool_call_id: NotRequired[str]
