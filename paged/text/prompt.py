"""Prompts before encoding, and parsers of their fields.

Fields of rows and of prompts from Python are parsed by the same functions: continuations to score,
token ids, priority and variables of the chat template.

A continuation is encoded together with its prompt, as in lm-evaluation-harness: its tokens are
those of the whole text after as many tokens as the prompt has alone. Tokenizers join a space to the
next word, so white space at the end of the prompt goes to the continuations. Token ids are taken
unchanged.
"""

import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.logprobs import Continuation
from pagedrun.paged.values.prompt_input import ChatMessage
from pagedrun.paged.values.rules import integers
from pagedrun.paged.values.sampling_params import MAX_N, SamplingParams

CONTINUATIONS = "continuations"
MAX_ENCODED_CHARS = 2**25  # of one row: a long prompt is encoded once with each of its texts

GivenContinuation = str | tuple[int, ...]
"""Text or token ids."""


class TextEncoder(Protocol):
    """Tokenizer without chats: texts to token ids and back."""

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Return the ids of each text; `RowError` if one of them cannot be encoded."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""


class TokenizerLike(TextEncoder, Protocol):
    """Tokenizer with a chat template."""

    @property
    def chat_template(self) -> str | None:
        """Chat template in force, None without one."""

    def render_chat(
        self,
        messages: Seq[ChatMessage],
        template_kwargs: Mapping[str, JSONValue] | None = None,
        *,
        time: datetime | None = None,
    ) -> str:
        """Return the chat as text; `RowError` (`template_error`) if the template refuses it.

        `template_kwargs` are further variables of the template. `time` is its clock, None for the
        present.
        """


def parse_continuations(value: object, params: SamplingParams) -> tuple[GivenContinuation, ...]:
    """Return the continuations to score, none if `value` is None.

    Raises `RowError` for anything but a short list of texts or of lists of token ids, and for
    parameters of sampled answers.
    """
    if value is None:
        return ()
    found = _texts(value) or _token_ids(value)
    if not found or len(found) > MAX_N:
        raise RowError(
            "invalid_param",
            f"{CONTINUATIONS} must be a list of 1 to {MAX_N} texts, or lists of token ids, none of "
            "them empty",
            param=CONTINUATIONS,
        )
    if params.n > 1 or params.logprobs is not None:
        name = "n" if params.n > 1 else "logprobs"
        raise RowError(
            "invalid_param",
            f"{name} applies to answers, but a row with {CONTINUATIONS} gets scores instead",
            param=name,
        )
    return found


def split_trailing_space(text: str) -> tuple[str, str]:
    """Return a prompt without the white space at its end, and that white space."""
    stripped = text.rstrip()
    return stripped, text[len(stripped) :]


def encode_texts(
    texts: Seq[str],
    encoder: TextEncoder,
    *,
    prompt: str | None,
    space: str,
    add_special_tokens: bool,
    num_prompt_tokens: int,
) -> tuple[Continuation, ...]:
    """Return the tokens of each text after a prompt and the white space cut from its end.

    prompt: None for one of token ids, to which the tokens of the text are added. Raises `RowError`
    if a text adds none, and if all of them with their prompts are too much to encode.
    """
    before = f"{prompt or ''}{space}"
    num_chars = len(texts) * len(before) + sum(map(len, texts))
    if num_chars > MAX_ENCODED_CHARS:
        raise RowError(
            "prompt_too_long",
            f"{len(texts)} {CONTINUATIONS}, each with the prompt, have {num_chars} characters, "
            f"more than {MAX_ENCODED_CHARS}; spread them over several rows",
            param=CONTINUATIONS,
        )
    whole = [before + text for text in texts]
    encoded = encoder.encode_batch(whole, prompt is not None and add_special_tokens)
    first = 0 if prompt is None else num_prompt_tokens
    found = [
        Continuation(text, tuple(ids[first:])) for text, ids in zip(texts, encoded, strict=True)
    ]
    for number, each in enumerate(found):
        if not each.token_ids:
            raise RowError(
                "invalid_param",
                f"{CONTINUATIONS}[{number}] adds no token to the prompt's",
                param=CONTINUATIONS,
            )
    return tuple(found)


def decode_token_ids(
    given: Seq[tuple[int, ...]], encoder: TextEncoder, vocab_size: int
) -> tuple[Continuation, ...]:
    """Return the text of token ids, special tokens included.

    Raises `RowError` for an id that is not below `vocab_size`.
    """
    if min(map(min, given)) < 0 or max(map(max, given)) >= vocab_size:
        raise RowError(
            "token_id_out_of_range",
            f"{CONTINUATIONS} has an id outside the model's vocabulary, 0 to {vocab_size - 1}",
            param=CONTINUATIONS,
        )
    return tuple(
        Continuation(encoder.decode(list(ids), skip_special_tokens=False), ids) for ids in given
    )


def _texts(value: object) -> tuple[str, ...]:
    """Return a list of texts, empty for another type."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value):
        return tuple(value)
    return ()


def _token_ids(value: object) -> tuple[tuple[int, ...], ...]:
    """Return lists of token ids, empty for another type."""
    if not isinstance(value, list | tuple):
        return ()
    if not all(isinstance(ids, list | tuple) and ids for ids in value):
        return ()
    if not all(type(each) is int for ids in value for each in ids):
        return ()
    return tuple(map(tuple, value))


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompt before encoding: exactly one of `text` and `token_ids` is set.

    A chat is rendered with its special tokens in the text, so none are added when encoding it.
    `continuations` are scored after it: all are texts, each after `space`, which was cut from the
    prompt's end, or all are token ids. A lower `priority` runs earlier.
    """

    params: SamplingParams
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    add_special_tokens: bool = True
    continuations: tuple[GivenContinuation, ...] = ()
    space: str = ""
    priority: int = 0

    @property
    def is_chat(self) -> bool:
        """True if the chat template was applied."""
        return not self.add_special_tokens

    def with_continuations(self, continuations: tuple[GivenContinuation, ...]) -> "Prompt":
        """Return the prompt with continuations to score."""
        if not continuations:
            return self
        if self.text is None or not isinstance(continuations[0], str):
            return replace(self, continuations=continuations)
        text, space = split_trailing_space(self.text)
        return replace(self, text=text, continuations=continuations, space=space)


def require_unicode(text: str, param: str = "prompt") -> None:
    """Raise `RowError` (`invalid_unicode`) if `text` cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowError(
            "invalid_unicode",
            f"{param} has half of a surrogate pair at character {error.start}, which is not "
            "valid text; escape the character as a whole pair",
            param=param,
        ) from error


class Overlong(StrEnum):
    """Handling of overlong prompts: fail the row, or drop tokens from the beginning or the end."""

    ERROR = "error"
    TRUNCATE_LEFT = "truncate-left"
    TRUNCATE_RIGHT = "truncate-right"

    def cut(
        self, ids: tuple[int, ...], max_model_len: int, max_tokens: int, num_needed: int = 1
    ) -> tuple[int, ...]:
        """Return the ids of a prompt, cut if it leaves no room for `num_needed` more tokens.

        A cut prompt leaves room for `max_tokens`, but keeps at least half of the context, unless
        the needed tokens take more.
        """
        if self is Overlong.ERROR or len(ids) + num_needed <= max_model_len:
            return ids
        num_kept = max(max_model_len - max(min(max_tokens, max_model_len // 2), num_needed), 0)
        return ids[len(ids) - num_kept :] if self is Overlong.TRUNCATE_LEFT else ids[:num_kept]


TOKEN_IDS = "prompt_token_ids"
NOT_LISTS = (str, bytes, bytearray, memoryview)  # sequences to Python


def checked_token_ids(value: object) -> tuple[int, ...]:
    """Return the ids of a prompt; raises `RowError` for anything but a list of integers.

    Their range is checked by `Request.fitted`.
    """
    items = value if isinstance(value, Seq) and not isinstance(value, NOT_LISTS) else [None]
    if all(type(item) is int for item in items):
        return tuple(items)
    raise RowError(
        "token_id_out_of_range", f"{TOKEN_IDS} must be a list of integers", param=TOKEN_IDS
    )


PRIORITY = "priority"
_RULE = integers(-(2**31), 2**31 - 1)


def parse_priority(value: object) -> int:
    """Return a prompt's priority, 0 if `value` is None; lower ones run earlier.

    Raises `RowError` for anything but an integer.
    """
    if value is None:
        return 0
    if not _RULE.accepts(value):
        raise RowError("invalid_param", f"{PRIORITY} must be {_RULE.wanted}", param=PRIORITY)
    assert isinstance(value, int)
    return value


RAW = "raw"


def parse_raw(value: object) -> bool | None:
    """Return the `raw` field of a prompt, None without one.

    Raises `RowError` for anything but a boolean.
    """
    if value is None or isinstance(value, bool):
        return value
    raise RowError(
        "invalid_param",
        f"{RAW} must be true or false: whether the prompt is completed as it is, without the "
        f"chat template, as with {option(RAW)}; rename the column if it holds something else",
        param=RAW,
    )


TEMPLATE_KWARGS = "chat_template_kwargs"
MAX_KWARGS = 64
MAX_KWARGS_CHARS = 2**16  # of all of them as JSON
# Names set by the tool itself or obeyed by other tools: CVE-2025-62426.
_RESERVED = frozenset(
    {
        *("messages", "conversation", "documents", "tools", "tokenizer", "kwargs", "padding"),
        *("add_generation_prompt", "continue_final_message", "chat_template", "tokenize"),
        *("truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"),
        *("bos_token", "eos_token", "unk_token", "pad_token", "raise_exception", "strftime_now"),
        *("range", "dict", "namespace", "cycler", "joiner", "return_assistant_tokens_mask"),
    }
)


def parse_template_kwargs(value: JSONValue) -> dict[str, JSONValue]:
    """Return variables of the chat template: plain JSON values by names.

    Raises `RowError`: `forbidden_field` for a reserved name, `invalid_param` for anything but a
    small object.
    """
    if not isinstance(value, dict) or len(value) > MAX_KWARGS:
        raise _invalid(f"must be an object of at most {MAX_KWARGS} values")
    for name in value:
        if name in _RESERVED:
            message = f"{TEMPLATE_KWARGS} cannot set {name}"
            raise RowError("forbidden_field", message, param=TEMPLATE_KWARGS)
        if not name.isidentifier() or name.startswith("_"):
            raise _invalid("has a name that is not a valid variable")
    try:
        num_chars = len(json.dumps(value, allow_nan=False))
    except (ValueError, RecursionError):
        raise _invalid("must have finite numbers only, and limited nesting") from None
    if num_chars > MAX_KWARGS_CHARS:
        raise _invalid(f"has more than {MAX_KWARGS_CHARS:,} characters")
    return value


def _invalid(reason: str) -> RowError:
    return RowError("invalid_param", f"{TEMPLATE_KWARGS} {reason}", param=TEMPLATE_KWARGS)


def present() -> datetime:
    """Return the local time in whole seconds, the precision of a manifest."""
    return datetime.now().replace(microsecond=0)
