"""Channels of answers: messages of reasoning and of the answer itself.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>` is
the output of models with these special tokens in their template (gpt-oss). Decoded without them,
the text would be `analysis…assistantfinal…`; the messages are therefore separated by token ids,
before decoding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagedrun.paged.text.tokenizer import Tokenizer

THOUGHT, ANSWER = "analysis", "final"
_START, _CHANNEL, _MESSAGE, _END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_ENDS = (_END, "<|return|>", "<|call|>")


def has_channels(chat_template: str | None) -> bool:
    """Return true if a model with this template answers in channels."""
    return all(mark in (chat_template or "") for mark in (_START, _CHANNEL, _MESSAGE))


@dataclass(frozen=True, slots=True)
class Channels:
    """Tokens that begin a message, name its channel, begin its content, and end it.

    `closing` are those that end reasoning and begin the answer.
    """

    start: int
    channel: int
    message: int
    ends: frozenset[int]
    closing: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: "Tokenizer") -> "Channels | None":
        """Return the channel tokens of a tokenizer, None if its template has no channels."""
        if not has_channels(tokenizer.chat_template):
            return None
        start, channel, message, *ends = map(
            tokenizer.special_id, (_START, _CHANNEL, _MESSAGE, *_ENDS)
        )
        if start is None or channel is None or message is None or ends[0] is None:
            return None
        text = f"{_END}{_START}assistant{_CHANNEL}{ANSWER}{_MESSAGE}"
        [closing] = tokenizer.encode_batch([text], add_special_tokens=False)
        known = frozenset(each for each in ends if each is not None)
        return cls(start, channel, message, known, tuple(closing))


@dataclass(slots=True)
class Message:
    """Message of an answer; `channel` is None outside all channels."""

    channel: str | None
    token_ids: list[int] = field(default_factory=list)


class ChannelReader:
    """Parser of an answer's tokens, one by one, into `messages`."""

    def __init__(
        self,
        channels: Channels,
        decode: Callable[[list[int]], str],
        prompt: Sequence[int],
    ) -> None:
        """prompt: its last message may be unfinished, to be continued by the answer."""
        self._channels = channels
        self._decode = decode
        self._header: list[int] | None = None  # tokens of the header; None within a content
        self._unmarked: list[int] = []  # without a mark at the start of a message
        self._messages = [Message(None)]
        for token in prompt[_last(prompt, channels.start) :]:
            self.take(token)
        self._messages = [] if self.is_header else [Message(self._messages[-1].channel)]
        self._unmarked = []

    @property
    def messages(self) -> list[Message]:
        """Messages so far, the last of which may be unfinished; a text without marks is one."""
        if not self._messages and self._unmarked:
            return [Message(None, self._unmarked)]
        return self._messages

    @property
    def is_header(self) -> bool:
        """True if the next token is between the contents of two messages."""
        return self._header is not None

    @property
    def is_answer(self) -> bool:
        """True if the next token is one of the answer itself."""
        return not self.is_header and self._messages[-1].channel in (ANSWER, None)

    def take(self, token: int) -> None:
        """Add a token."""
        marks = self._channels
        if token == marks.start or token in marks.ends:
            self._begin([])
        elif token == marks.channel:
            self._begin([token])
        elif token == marks.message:
            self._messages.append(Message(self._name(self._header or [])))
            self._header = None
        elif self._header is None:
            self._messages[-1].token_ids.append(token)
        else:
            self._header.append(token)
            if self._header[0] != marks.channel:
                self._unmarked.append(token)

    def _begin(self, header: list[int]) -> None:
        if not self.is_header and self._messages[-1] == Message(None):
            self._messages.pop()  # empty
        self._header, self._unmarked = header, []

    def _name(self, header: list[int]) -> str | None:
        """Return the name after the channel's mark, up to a blank; None without such a mark."""
        if header[:1] != [self._channels.channel]:
            return None
        words = self._decode(header[1:]).split()
        return words[0] if words else None


def split_messages(messages: Sequence[Message], contents: Sequence[str]) -> tuple[str | None, str]:
    """Return reasoning, None without any, and answer of messages with these contents.

    The answer begins with the first message of its channel; without one it is the last message,
    such as a call of a tool, unless that is interrupted reasoning.
    """
    names = [message.channel for message in messages]
    if ANSWER in names:
        begin = names.index(ANSWER)
    else:
        begin = len(names) - (names[-1:] != [THOUGHT] and len(names) > 0)
    thought = "\n".join(contents[:begin]) if begin else None
    return thought, "\n".join(contents[begin:])


def _last(tokens: Sequence[int], wanted: int) -> int:
    """Return the last position of a token, the length if it does not occur."""
    positions = range(len(tokens) - 1, -1, -1)
    return next((position for position in positions if tokens[position] == wanted), len(tokens))


class ChannelReasoning:
    """Reasoning in channels, up to the tokens of the answer; see `ReasoningState`."""

    tags = None
    end = ""  # without tags

    def __init__(self, reader: ChannelReader) -> None:
        self._reader = reader

    @property
    def is_open(self) -> bool:
        """True if the answer has not begun."""
        return not self._reader.is_answer

    @property
    def is_over(self) -> bool:
        """True if the answer has begun."""
        return self._reader.is_answer

    @property
    def is_counted(self) -> bool:
        """True if the next token is one of reasoning, rather than between two messages."""
        return self.is_open and not self._reader.is_header

    def take(self, token_id: int) -> None:
        """Add the next token of the answer."""
        self._reader.take(token_id)
