"""Tokenizer of a model folder: text to token ids and back, chats to text.

Only tokenizer.json with the tokens declared beside it, or the vocabulary of a GGUF file, determines
the tokens. `AutoTokenizer` is not used: it picks a class by a name in the model folder.
"""

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jinja2 import Template, TemplateSyntaxError, nodes

from pagedrun.paged.files.folder_kinds import other_kind
from pagedrun.paged.files.gguf import is_gguf
from pagedrun.paged.files.json_object import (
    JsonObject,
    read_small,
    require_folder,
    require_small,
)
from pagedrun.paged.text.chat_messages import checked_messages, cut_at_mark, mark_end
from pagedrun.paged.text.incremental_text import REPLACEMENT
from pagedrun.paged.text.prompt import present, require_unicode
from pagedrun.paged.text.templates.content_parts import walks_content
from pagedrun.paged.text.templates.sandbox import Sandbox
from pagedrun.paged.text.vocabulary.declared_case import declare_case
from pagedrun.paged.text.vocabulary.gguf_tokenizer import read_gguf_tokenizer
from pagedrun.paged.text.vocabulary.special_tokens import (
    TOKENIZER_FILE,
    DeclaredTokens,
    read_tokenizer_config,
)
from pagedrun.paged.text.vocabulary.tokenizer_limits import refuse_growth, refuse_long_pieces
from pagedrun.paged.values.errors import ModelError, RowError, UsageError, option
from pagedrun.paged.values.json_value import JSONValue

TEMPLATE_FILE = "chat_template.jinja"
MAX_TOKENIZER_BYTES = 2**29  # the largest known are about 50 MB
MAX_TEMPLATE_CHARS = 1_000_000
MAX_RENDERED_CHARS = 16 * 2**20  # far beyond any context
MAX_REASON = 300  # characters of a template's own error, which may repeat the row
_WORD = re.compile(r"[\w.\-/\\]+")  # a name, of a template or a file


class Tokenizer:
    """Tokenizer and chat template of a model folder; built by `from_folder`.

    `vocab_size` is one more than the largest id of the files, `num_ids` than that of any token:
    tokens that no file gives an id, such as a padding token, are behind the others.
    `truncation_side`: the side on which the folder wants long texts to be cut.
    """

    def __init__(
        self, fast: Any, chat_template: str | None, without_ids: frozenset[str] = frozenset()
    ) -> None:
        """without_ids: texts of the tokens that no file gives an id."""
        self._fast = fast  # transformers' PreTrainedTokenizerFast
        self._backend = fast.backend_tokenizer
        # Some tokenizer.json files keep these settings from training; they would truncate or pad
        # silently.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.truncation_side: str = fast.truncation_side
        self._lowers = False
        self._byte_values = byte_values(self._backend)
        self.chat_template = chat_template
        self._sandbox = Sandbox.for_chats()
        self._compiled: Template | Exception | None = None
        self._walks: bool | None = None
        self.bos_token_id: int | None = fast.bos_token_id
        self.eos_token_id: int | None = fast.eos_token_id
        # Ids may have gaps, so the count of tokens would be too small.
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        self.num_ids: int = 1 + max(vocabulary.values())
        self.vocab_size: int = 1 + max(
            token_id for text, token_id in vocabulary.items() if text not in without_ids
        )
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(number for number, token in added.items() if token.special)
        start = self._backend.encode("", add_special_tokens=True).ids[:1]
        self._adds_bos = start == [self.bos_token_id]

    @classmethod
    def from_folder(cls, folder: str | Path, chat_template: str | None = None) -> "Tokenizer":
        """Read tokenizer.json, and added tokens and chat template beside it; or a GGUF file.

        `chat_template` (Jinja text) replaces the folder's own, chat_template.jinja or else the one
        in tokenizer_config.json; a folder may have none. Raises `ModelError` if tokenizer.json is
        missing or unreadable, or if the files contradict each other, `UsageError` if
        `chat_template` is no Jinja.
        """
        path = Path(folder)
        if is_gguf(path):
            backend, config = read_gguf_tokenizer(path)
        else:
            path = require_folder(path)
            backend, config = _read_backend(path / TOKENIZER_FILE), read_tokenizer_config(path)
            declare_case(backend, config)
        declared = DeclaredTokens.read(path, config)
        without_ids = declared.without_ids(backend)
        settings = _truncation(config) | declared.arguments()
        from transformers import PreTrainedTokenizerFast  # imported here: it takes long

        with _refused(path / TOKENIZER_FILE if path.is_dir() else path):
            # It copies the tokenizer.
            fast = PreTrainedTokenizerFast(
                tokenizer_object=backend, clean_up_tokenization_spaces=False, **settings
            )
        declared.check(fast.backend_tokenizer)
        if chat_template is None:
            chat_template = _read_template(path / TEMPLATE_FILE, config)
        else:
            _check_template(chat_template)
        return cls(fast, chat_template, without_ids)

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Return the token ids of each text.

        Raw prompts want `add_special_tokens`: tokenizer.json defines them, often one at the
        beginning of the sequence, which is not doubled if the text begins with it already. Rendered
        chats do not: the template has written them. Special tokens in the text are recognized in
        both cases. Raises `RowError` (`invalid_unicode`) if a text holds half a surrogate pair;
        call `require_unicode` on each text first to identify it.
        """
        for text in texts:
            require_unicode(text)
        try:
            encodings = self._backend.encode_batch(texts, add_special_tokens=add_special_tokens)
        except BaseException as error:  # a panic in Rust is not an Exception
            _reraise(error)
        batch: list[list[int]] = [encoding.ids for encoding in encodings]
        if add_special_tokens and self._adds_bos:
            twice = [self.bos_token_id] * 2  # ours, and the text's own
            batch = [ids[1:] if ids[:2] == twice else ids for ids in batch]
        return batch

    def encode_pairs(
        self,
        texts: Sequence[str | tuple[str, str]],
        *,
        add_special_tokens: bool,
        max_tokens: int | None = None,
        side: str = "right",
    ) -> list["EncodedText"]:
        """Return the tokens of each text or pair, cut to `max_tokens` on a side.

        Special tokens are kept; of a pair the longer text is cut. Raises `RowError` as
        `encode_batch` does, also if special tokens alone are more than `max_tokens`.
        """
        cut = nullcontext() if max_tokens is None else self._truncating(max_tokens, side)
        try:
            with cut:
                found = self._backend.encode_batch(
                    list(texts), add_special_tokens=add_special_tokens
                )
        except BaseException as error:  # a panic in Rust is not an Exception
            _reraise(error)
        return [
            EncodedText(
                each.ids,
                _num_of_first_type(each.type_ids),
                [rest.ids for rest in each.overflowing],
            )
            for each in found
        ]

    def lower_texts(self) -> None:
        """Write texts in lower case from now on, as the first step of the tokenizer.

        Special tokens in a text stay as they are.
        """
        if self._lowers:
            return
        from tokenizers import normalizers  # imported here: most runs need none

        own = self._backend.normalizer
        steps = [normalizers.Lowercase(), *([] if own is None else [own])]
        self._backend.normalizer = normalizers.Sequence(steps)
        self._lowers = True

    def num_special_tokens(self, *, of_pair: bool) -> int:
        """Return how many special tokens surround a text, or a pair."""
        return int(self._backend.num_special_tokens_to_add(of_pair))

    @contextmanager
    def _truncating(self, max_tokens: int, side: str) -> Iterator[None]:
        """Cut texts within the context; `RowError` if special tokens alone are too many."""
        try:
            self._backend.enable_truncation(max_tokens, direction=side)
            yield
        except BaseException as error:
            _reraise(error)
        finally:
            self._backend.no_truncation()

    def special_id(self, text: str) -> int | None:
        """Return the id of a special token, None for other texts."""
        token_id: int | None = self._backend.token_to_id(text)
        return token_id if token_id in self.special_ids else None

    def special_ids_in(self, texts: Sequence[str]) -> frozenset[int]:
        """Return the ids of the special tokens in these texts."""
        marks = {token_id: self._backend.id_to_token(token_id) for token_id in self.special_ids}
        return frozenset(
            token_id for token_id, mark in marks.items() if any(mark in text for text in texts)
        )

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        template_kwargs: Mapping[str, JSONValue] | None = None,
        *,
        time: datetime | None = None,
        continues_last: bool = False,
    ) -> str:
        """Return the text of a chat, up to the start of the assistant's answer.

        With `continues_last` it ends with the last message, which the answer continues.

        Encode it with `add_special_tokens=False`. The template runs in a `Sandbox`;
        `template_kwargs` are further variables, which cannot replace those of every chat. `time` is
        the clock of `strftime_now`, None for the present. Special tokens in users' messages are
        encoded as such, as Hugging Face does by default. A list of text parts is given to templates
        that walk it, and to others as its texts, joined by newlines.

        Raises `RowError`: `unsupported_content` for anything but text, `template_error` if there is
        no template or it fails, `invalid_unicode` for half a surrogate pair.
        """
        if self.chat_template is None:
            raise RowError(
                "template_error",
                f"the model has no chat template; pass one with {option('chat_template')}, or give "
                "`prompt` instead of `messages`",
                param="messages",
            )
        chat = checked_messages(messages)
        if continues_last:
            chat[-1] = mark_end(chat[-1])
        parts = {
            number: message.pop("content_parts")
            for number, message in enumerate(chat)
            if "content_parts" in message
        }
        if continues_last:
            parts.pop(len(chat) - 1, None)
        given = {**(template_kwargs or {}), "add_generation_prompt": not continues_last}
        text = self._rendered(chat, parts, given, time or present())
        return cut_at_mark(text) if continues_last else text

    def render_pair(
        self,
        query: str,
        document: str,
        prompt: str,
        variables: Mapping[str, JSONValue],
        parts: bool,
    ) -> str:
        """Return the text of a chat whose messages have the roles `query` and `document`.

        `prompt` is a system message before them, unless it is empty. variables: further ones of the
        template. parts: contents are lists of parts. Raises as `render_chat`.
        """
        if self.chat_template is None:
            raise RowError("template_error", "the model has no chat template", param="query")
        given = {"query": query, "document": document}
        if prompt:
            given = {"system": prompt, **given}
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if parts else text}
            for role, text in given.items()
        ]
        return self._rendered(
            messages, {}, {"add_generation_prompt": False, **variables}, present()
        )

    def _rendered(
        self,
        messages: Sequence[Mapping[str, object]],
        parts: Mapping[int, Any],
        given: Mapping[str, JSONValue],
        time: datetime,
    ) -> str:
        """Return the text of messages; `parts` as in `_render_parts`, given: further variables."""
        variables = {
            **given,
            "messages": messages,
            "tools": None,
            "documents": None,
            **self._fast.special_tokens_map,
        }
        try:
            text = self._render_parts(variables, parts, time)
        except Exception as error:  # a template can raise anything, RecursionError included
            raise RowError(
                "template_error",
                f"the chat template failed: {type(error).__name__}: {str(error)[:MAX_REASON]}",
                param="messages",
            ) from error
        if len(text) > MAX_RENDERED_CHARS:
            raise RowError(
                "template_error",
                f"the chat template rendered {len(text)} characters, more than the "
                f"limit of {MAX_RENDERED_CHARS}",
                param="messages",
            )
        require_unicode(text, "messages")
        return text

    def _render_parts(
        self, variables: Mapping[str, Any], parts: Mapping[int, Any], time: datetime
    ) -> str:
        """Render a chat with lists of parts, where the template walks them, by message number.

        A template that walks the parts of one role may print those of another as a list: these are
        given as text.
        """
        if not parts or not self._walks_content():
            return self._render(variables, time)
        chat = list(variables["messages"])
        for number, content in parts.items():
            chat[number] = {**chat[number], "content": content}
        try:
            text = self._render({**variables, "messages": chat}, time)
        except Exception:  # raised again if it is not for the lists
            return self._render(variables, time)
        printed = [
            number
            for number, content in parts.items()
            if str(content) in text or json.dumps(content, ensure_ascii=False) in text
        ]
        if not printed:
            return text
        for number in printed:
            chat[number] = variables["messages"][number]
        return self._render({**variables, "messages": chat}, time)

    def _walks_content(self) -> bool:
        """Return true if the template walks the parts of a content."""
        if self._walks is None:
            try:
                self._walks = walks_content(self._sandbox.parse(self.chat_template or ""))
            except Exception:  # reported when the chat is rendered
                self._walks = False
        return self._walks

    def _render(self, variables: Mapping[str, object], time: datetime) -> str:
        """Render the template, compiled on first use; raises its error each time."""
        if self._compiled is None:
            assert self.chat_template is not None
            try:
                self._compiled = self._sandbox.from_string(self.chat_template)
            except Exception as error:
                self._compiled = error
        if isinstance(self._compiled, Exception):
            raise self._compiled.with_traceback(None)  # else it grows with each row
        return self._sandbox.render(self._compiled, variables, time)

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; padding ids past the vocabulary are skipped.

        An incomplete character at the end is one U+FFFD.
        """
        text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        if self._byte_values and text.endswith(REPLACEMENT):
            num_cut = num_cut_bytes(token_ids, self._byte_values)
            if num_cut:
                whole = token_ids[:-num_cut]
                text = self._backend.decode(whole, skip_special_tokens=skip_special_tokens)
                text += REPLACEMENT
        return text

    def token_texts(self) -> list[str]:
        """Return the text of each token alone, by its id; empty for unused ids."""
        alone = [[token_id] for token_id in range(self.vocab_size)]
        texts: list[str] = self._backend.decode_batch(alone, skip_special_tokens=False)
        return texts

    def to_json(self) -> str:
        """Return the tokenizer as tokenizer.json has it, with all special tokens."""
        text: str = self._backend.to_str()
        return text


class EncodedText(NamedTuple):
    """Tokens of a text or pair.

    num_first: tokens before those of the second type. rest: what was cut, in pieces of at most as
    many tokens, each with special tokens.
    """

    ids: list[int]
    num_first: int
    rest: list[list[int]]


def _check_template(chat_template: str) -> None:
    """Raise `UsageError` for a template that cannot render any chat, or renders all alike.

    A valid one may still refuse a chat, for example without a system message: each row reports
    that.
    """
    if len(chat_template) > MAX_TEMPLATE_CHARS:
        raise UsageError(
            f"{option('chat_template')} is longer than {MAX_TEMPLATE_CHARS:,} characters"
        )
    try:
        sandbox = Sandbox.for_chats()
        compiled = sandbox.from_string(chat_template)
        names = {each.name for each in sandbox.parse(chat_template).find_all(nodes.Name)}
        if "messages" in names:
            return
        sandbox.render(compiled, {})
    except TemplateSyntaxError as error:
        raise UsageError(
            f"{option('chat_template')}, line {error.lineno}: {error.message}"
        ) from error
    except Exception:
        return
    if _WORD.fullmatch(chat_template):
        raise UsageError(
            f"{option('chat_template')} {chat_template} is neither a Jinja template nor a file "
            "that is there, and templates have no names here; pass @file, or leave it out for the "
            "tokenizer's own"
        )
    raise UsageError(
        f"{option('chat_template')}: the template never reads `messages`, so that all chats would "
        "be the same text; pass one that does, or leave it out for the tokenizer's own"
    )


def _read_backend(path: Path) -> Any:
    import tokenizers

    if not path.exists():
        kind = other_kind(path.parent)
        if kind is not None:
            raise ModelError(f"{path.parent} {kind}")
        raise ModelError(
            f"{path.parent} needs {TOKENIZER_FILE} (the fast tokenizer); download it, or "
            "create it from the old files with transformers: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    require_small(path, MAX_TOKENIZER_BYTES)
    refuse_long_pieces(path)
    with _refused(path):
        backend = tokenizers.Tokenizer.from_file(str(path))
    refuse_growth(backend, path)
    return backend


def _truncation(config: JsonObject) -> dict[str, str]:
    """Return the argument of Transformers for the side on which texts are cut.

    Without it the settings of truncation in tokenizer.json count.
    """
    side = config.string("truncation_side")
    if side not in (None, "left", "right"):
        raise config.error("truncation_side", '"left" or "right"')
    return {} if side is None else {"truncation_side": side}


def _read_template(path: Path, config: JsonObject) -> str | None:
    """Return chat_template.jinja, else the default template of tokenizer_config.json."""
    if path.exists():
        try:
            template: Any = read_small(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"{path} cannot be read as UTF-8 text; download it again") from error
    else:
        template = config.get("chat_template")
        if isinstance(template, list):
            named = [item for item in template if isinstance(item, dict)]
            default = [item.get("template") for item in named if item.get("name") == "default"]
            template = default[0] if default else None
    if template is not None and not isinstance(template, str):
        raise config.error("chat_template", "a template, or a list of named templates")
    if template is not None and len(template) > MAX_TEMPLATE_CHARS:
        raise ModelError(f"{path.parent}: the chat template is longer than {MAX_TEMPLATE_CHARS}")
    return template


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Raise `ModelError` where the library fails at the tokenizer in `path`."""
    try:
        yield
    except BaseException as error:  # a panic in Rust is not an Exception
        if not _is_from_rust(error):
            raise
        raise ModelError(
            f"{path} is not a tokenizer ({str(error)[:120]}); download it again"
        ) from error


def _is_from_rust(error: BaseException) -> bool:
    """Return true if Rust code failed, with an error (an Exception) or a panic (not an
    Exception).
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _reraise(error: BaseException) -> NoReturn:
    if not _is_from_rust(error):
        raise error
    raise RowError(
        "tokenizer_error", f"the tokenizer failed: {str(error)[:200]}", param="prompt"
    ) from error


_Utf8Decoder = getincrementaldecoder("utf-8")


def byte_values(backend: Any) -> dict[int, int]:
    """Return the bytes of single-byte tokens, by token id, where decoding joins them.

    That is the case for SentencePiece models ("byte fallback"), in which one missing byte spoils
    all adjacent ones: none of them is shown. Other tokenizers have no such tokens.
    """
    decoder = backend.decoder
    if decoder is None or b'"ByteFallback"' not in decoder.__getstate__():
        return {}
    ids = ((backend.token_to_id(f"<0x{value:02X}>"), value) for value in range(256))
    return {token_id: value for token_id, value in ids if token_id is not None}


def num_cut_bytes(token_ids: Sequence[int], values: Mapping[int, int]) -> int:
    """Return the number of last tokens that are bytes of an incomplete character."""
    for count in range(1, min(3, len(token_ids)) + 1):
        tail = [values.get(token_id) for token_id in token_ids[-count:]]
        if None in tail:
            return 0
        try:
            is_whole = _Utf8Decoder().decode(bytes(each for each in tail if each is not None))
        except UnicodeDecodeError:
            continue  # it begins before these
        return 0 if is_whole else count
    return 0


def _num_of_first_type(types: list[int]) -> int:
    """Return the number of tokens before the first of the second type."""
    return types.index(1) if 1 in types else len(types)
