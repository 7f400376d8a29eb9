"""Forms of prompts: those accepted from Python, and messages of a chat."""

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from pagedrun.paged.values.json_value import JSONValue

ContinuationsInput = Sequence[str] | Sequence[Sequence[int]]
"""What is to be scored behind a prompt: texts, or lists of token ids."""


class TextPrompt(TypedDict):
    """A text: one user message where the model has a chat template, and it is not `raw`.

    Raw ones get the tokenizer's special tokens, and `chat_template_kwargs` are not for them.
    """

    prompt: str
    raw: NotRequired[bool]
    chat_template_kwargs: NotRequired[Mapping[str, JSONValue]]
    continuations: NotRequired[ContinuationsInput]
    priority: NotRequired[int]


class TokensPrompt(TypedDict):
    """Token ids, taken as they are."""

    prompt_token_ids: Sequence[int]
    continuations: NotRequired[ContinuationsInput]
    priority: NotRequired[int]


class ChatPrompt(TypedDict):
    """The messages of a chat, and variables for its template beside them."""

    messages: Sequence[Mapping[str, object]]
    chat_template_kwargs: NotRequired[Mapping[str, JSONValue]]
    continuations: NotRequired[ContinuationsInput]
    priority: NotRequired[int]


Conversation = Sequence[Mapping[str, object]]
"""The messages of a chat, each with `role` and `content`."""

PromptInput = str | Sequence[int] | Conversation | TextPrompt | TokensPrompt | ChatPrompt
"""A text, token ids, the messages of a chat, or a mapping that names which it is."""


class ChatMessage(TypedDict):
    """Message of a chat; `name` distinguishes speakers of one role.

    `reasoning` is the thought before an answer, `tool_calls` are what an answer calls, beside its
    text or without one; `tool_call_id` says which call a tool's message answers.
    """

    role: str
    content: NotRequired[str]
    name: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[JSONValue]]
    tool_call_id: NotRequired[str]
