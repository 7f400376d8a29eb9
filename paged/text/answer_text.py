"""Text of answers, finished or still being generated."""

from collections.abc import Callable, Iterable, Sequence

from pagedrun.paged.text.channels import (
    ChannelReader,
    ChannelReasoning,
    Channels,
    Message,
    split_messages,
)
from pagedrun.paged.text.incremental_text import IncrementalText
from pagedrun.paged.text.reasoning import AUTO, ReasoningState, ReasoningTags, TaggedReasoning
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

Decode = Callable[[list[int]], str]


class AnswerText:
    """Texts of all answers with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._channels = Channels.of(tokenizer)
        self._tags: dict[str, ReasoningTags | None] = {}
        self._decoders: dict[tuple[bool, ReasoningTags | None], Decode] = {}

    def decoder(self, params: SamplingParams) -> Decode:
        """Return the decoder of token ids for answers. It keeps tags, even special ones."""
        skips, tags = params.skip_special_tokens, self._tags_of(params)
        if (skips, tags) not in self._decoders:
            self._decoders[skips, tags] = self._decoder(tags, skips_special=skips)
        return self._decoders[skips, tags]

    def text(self, request: Request, token_ids: list[int]) -> str:
        """Return the text of an answer's tokens; in channels, of their last message."""
        if self._channels_of(request.params) is not None:
            messages = self._messages(request, token_ids)
            token_ids = messages[-1].token_ids if messages else []
        return self.decoder(request.params)(token_ids)

    def num_early(self, request: Request, token_ids: list[int], num_tokens: int) -> int:
        """Return the number of characters of `text` that the first `num_tokens` tokens make."""
        early = token_ids[:num_tokens]
        if self._channels_of(request.params) is not None:
            messages = len(self._messages(request, token_ids))
            if len(self._messages(request, early)) < messages:
                return 0
        return len(self.text(request, early))

    def split(self, request: Request, token_ids: list[int], text: str) -> tuple[str | None, str]:
        """Return an answer's reasoning, None without any, and the text without it.

        `text` is that of the tokens, or its beginning. Before a structure, reasoning needs its
        opening tag.
        """
        params = request.params
        if self._channels_of(params) is not None:
            messages, decode = self._messages(request, token_ids), self.decoder(params)
            contents = [decode(message.token_ids) for message in messages[:-1]]
            return split_messages(messages, [*contents, text] if messages else [])
        tags = self._tags_of(params)
        if tags is None:
            return None, text
        must_open = params.structure is not None
        return tags.split(text, self._prompt_end(request, tags), must_open=must_open)

    def thought(self, request: Request) -> ReasoningState | None:
        """Return the reasoning state of an answer to a request; None without reasoning."""
        channels, decode = self._channels_of(request.params), self.decoder(request.params)
        if channels is not None:
            reader = ChannelReader(channels, decode, request.prompt_token_ids)
            return None if reader.is_answer else ChannelReasoning(reader)
        tags = self._tags_of(request.params)
        if tags is None:
            return None
        prompt = self._prompt_end(request, tags)
        if tags.closed_by(prompt):
            return None
        return TaggedReasoning(tags, decode, is_open=tags.opened_by(prompt))

    def closing(self, params: SamplingParams) -> tuple[int, ...]:
        """Return the tokens that close reasoning in answers with these parameters."""
        channels, tags = self._channels_of(params), self._tags_of(params)
        if channels is not None:
            return channels.closing
        [closing] = self._tokenizer.encode_batch(["" if tags is None else tags.closing], False)
        return tuple(closing)

    def _decoder(self, tags: ReasoningTags | None, *, skips_special: bool) -> Decode:
        tokenizer = self._tokenizer
        if not skips_special:
            return lambda token_ids: tokenizer.decode(token_ids, skip_special_tokens=False)
        kept = tokenizer.special_ids_in(() if tags is None else (tags.opening, tags.closing))
        if not kept:
            return tokenizer.decode
        skipped = tokenizer.special_ids - kept

        def decode(token_ids: list[int]) -> str:
            shown = [token_id for token_id in token_ids if token_id not in skipped]
            return tokenizer.decode(shown, skip_special_tokens=False)

        return decode

    def _channels_of(self, params: SamplingParams) -> Channels | None:
        return self._channels if params.reasoning_tags == AUTO else None

    def _tags_of(self, params: SamplingParams) -> ReasoningTags | None:
        """Return the reasoning tags of answers with these parameters, None without any."""
        setting = params.reasoning_tags
        if setting not in self._tags:
            self._tags[setting] = ReasoningTags.of(setting, self._tokenizer.chat_template)
        return self._tags[setting]

    def _messages(self, request: Request, token_ids: list[int]) -> list[Message]:
        channels = self._channels_of(request.params)
        assert channels is not None
        reader = ChannelReader(channels, self._tokenizer.decode, request.prompt_token_ids)
        for token_id in token_ids:
            reader.take(token_id)
        return reader.messages

    def _prompt_end(self, request: Request, tags: ReasoningTags) -> str:
        """Return the end of a prompt, which may open or close reasoning."""
        last = list(request.prompt_token_ids[-tags.most_tokens :])
        return self._tokenizer.decode(last, skip_special_tokens=False)


class StreamedAnswer:
    """Final part of an unfinished answer: `thought` and `text` only grow.

    Text that later tokens may change is held back: an incomplete character, the beginning of a stop
    string or of the closing tag, and any text while reasoning may come before it. The caller feeds
    no token that ends the answer.
    """

    def __init__(self, texts: AnswerText, request: Request) -> None:
        self._texts = texts
        self._request = request
        self._thinking = texts.thought(request)
        self._decoded = IncrementalText(texts.decoder(request.params), 0)
        self._whole = ""
        self.num_tokens = 0
        self.thought = ""
        self.text = ""

    def feed(self, token_ids: Sequence[int]) -> None:
        """Add tokens."""
        self.num_tokens += len(token_ids)
        shown = [token for token in token_ids if self._is_shown(token)]
        if not shown:
            return
        piece = self._decoded.feed(shown)
        if not self._decoded.is_open:
            self._whole += piece
            self._settle()

    def _is_shown(self, token: int) -> bool:
        """Add a token; return whether it is visible, reasoning and tags included.

        In channels only the answer itself is.
        """
        thinking = self._thinking
        if thinking is None:
            return True
        was_over = thinking.is_over
        if not was_over or isinstance(thinking, ChannelReasoning):
            thinking.take(token)
        return not isinstance(thinking, ChannelReasoning) or (was_over and thinking.is_over)

    def _settle(self) -> None:
        thinking = self._thinking
        certain = _before_beginning_of(self._request.params.stop, self._whole)
        if thinking is None or thinking.tags is None:
            self.text = certain
        elif thinking.is_over:
            self._split(certain)
        elif thinking.is_open:
            self._split(_before_beginning_of([thinking.tags.closing], certain))

    def _split(self, certain: str) -> None:
        thought, self.text = self._texts.split(self._request, [], certain)
        self.thought = thought or ""


def _before_beginning_of(endings: Iterable[str], text: str) -> str:
    """Return a text without its longest suffix that begins one of these strings."""
    longest = max(
        (
            length
            for ending in endings
            for length in range(1, len(ending))
            if text.endswith(ending[:length])
        ),
        default=0,
    )
    return text[: len(text) - longest]
