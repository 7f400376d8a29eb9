"""GgufVocabulary: tokens of a GGUF file, their types, and the tokens that end a text."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

from pagedrun.paged.files.gguf import GgufFile
from pagedrun.paged.files.json_object import JsonObject, is_integer
from pagedrun.paged.values.errors import ModelError, option

# Values of tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_PREFIX = "tokenizer.ggml."
# Ids of special tokens, by the names that Transformers and chat templates have for them.
SPECIAL_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
# Tokens that end an answer whatever the file says of them, as in llama.cpp. Its tokens of
# fill-in-the-middle end nothing in the models' generation_config.json, so they are not here.
_END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)
# In these formats of messages, <|end|> ends a message, and the others an answer.
_END_OF_MESSAGE = "<|end|>"
_ENDS_OF_FORMATS = (
    {_END_OF_MESSAGE, "<|return|>", "<|call|>"},
    {_END_OF_MESSAGE, "<|flush|>", "<|call|>"},
    {_END_OF_MESSAGE, "<|flush|>", "<|calls|>"},
)


class GgufVocabulary:
    """Fields `tokenizer.ggml.*` of a GGUF file, checked when they are read.

    Getters raise `ModelError` that names file and field: for a list of another length than the
    tokens', a token that is there twice, an id that is none.
    """

    def __init__(self, file: GgufFile) -> None:
        self.fields = JsonObject(str(file.path), file.metadata)

    @property
    def model(self) -> str:
        """Kind of tokenizer, such as gpt2 or llama."""
        return self.fields.text(f"{_PREFIX}model")

    def refused(self, field: str, why: str) -> ModelError:
        """Return the error for a field `tokenizer.ggml.field`; `why` is its predicate."""
        return ModelError(
            f"{self.fields.origin}: {_PREFIX}{field} {why}; download the model again, or pass the "
            f"folder of the original model's tokenizer with {option('tokenizer')}"
        )

    @cached_property
    def _texts(self) -> list[str]:
        return [text or f"[EMPTY_{number}]" for number, text in enumerate(self.texts("tokens"))]

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Ids of the tokens by their texts."""
        return {text: number for number, text in enumerate(self._texts)}

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self._texts)

    @cached_property
    def tokens(self) -> list[str]:
        """Texts of the tokens by their ids, each a different one."""
        if not self._texts:
            raise self.refused("tokens", "is missing or empty")
        if len(self.ids) != self.size:
            number = next(i for i, text in enumerate(self._texts) if self.ids[text] != i)
            other = self.ids[self._texts[number]]
            raise self.refused("tokens", f"has the same token under the ids {number} and {other}")
        return self._texts

    @cached_property
    def types(self) -> Sequence[int]:
        """Types of the tokens by their ids; NORMAL where the file has none.

        Tokens that end answers are CONTROL, and no others of theirs.
        """
        found = self._numbers("token_type") if self.has("token_type") else [NORMAL] * self.size
        types = [number if is_integer(number) else 0 for number in found]
        if not all(NORMAL <= number <= BYTE or number == 0 for number in types):
            raise self.refused("token_type", f"has a number that is not from 0 to {BYTE}")
        for token_id in self.end_ids:
            types[token_id] = CONTROL
        return types

    @cached_property
    def scores(self) -> Sequence[float]:
        """Scores of the tokens by their ids, finite numbers."""
        if not self.has("scores"):
            raise self.refused("scores", f"is missing, and {self.model} merges by scores")
        scores = [float(score) for score in self._numbers("scores")]
        if not all(map(math.isfinite, scores)):
            raise self.refused("scores", "has a number that is not finite")
        return scores

    @cached_property
    def end_ids(self) -> list[int]:
        """Ids of the tokens that end an answer, that of the file's EOS first."""
        named = [self.special_id(f"{name}_token_id") for name in ("eos", "eot", "eom")]
        texts = {text for text in _END_TEXTS if text in self.ids}
        if any(ends <= texts for ends in _ENDS_OF_FORMATS):
            texts.remove(_END_OF_MESSAGE)
        found = [each for each in named if each is not None]
        return list(dict.fromkeys([*found, *sorted(self.ids[text] for text in texts)]))

    @cached_property
    def special_tokens(self) -> Mapping[str, str]:
        """Texts of the special tokens, by the names that chat templates have for them."""
        named = {name: self.special_id(field) for name, field in SPECIAL_IDS.items()}
        return {name: self.tokens[each] for name, each in named.items() if each is not None}

    def has(self, field: str) -> bool:
        """Return true if the file has a field `tokenizer.ggml.field`."""
        return self.fields.has(_PREFIX + field)

    def special_id(self, field: str, default: int | None = None) -> int | None:
        """Return the id of a token in a field, a default if it is absent."""
        if not self.has(field):
            return default if default is None or default < self.size else None
        return self.fields.integer(_PREFIX + field, 0, self.size - 1)

    def flag(self, field: str, default: bool) -> bool:
        """Return true or false."""
        return self.fields.boolean(_PREFIX + field, default)

    def name(self, field: str) -> str | None:
        """Return a string, None if absent."""
        return self.fields.string(_PREFIX + field)

    def texts(self, field: str) -> list[str]:
        """Return a list of strings, an empty one if absent."""
        values = self.fields.get(_PREFIX + field) or []
        if not isinstance(values, list):
            raise self.refused(field, "is not a list of texts")
        texts = [each for each in values if isinstance(each, str)]
        if len(texts) != len(values):
            raise self.refused(field, "is not a list of texts")
        return texts

    def bytes(self, field: str) -> bytes:
        """Return a list of bytes, signed or not, an empty one if absent."""
        values = self.fields.get(_PREFIX + field) or []
        if not isinstance(values, list) or not all(map(is_integer, values)):
            raise self.refused(field, "is not a list of bytes")
        try:
            return bytes(each % 256 for each in values if is_integer(each) and -128 <= each <= 255)
        except ValueError as error:
            raise self.refused(field, "is not a list of bytes") from error

    def _numbers(self, field: str) -> list[int | float]:
        """Return a number for each token."""
        values = self.fields.get(_PREFIX + field)
        if not isinstance(values, list):
            raise self.refused(field, "is not a list of numbers")
        numbers = [each for each in values if isinstance(each, int | float)]
        if len(numbers) != len(values):
            raise self.refused(field, "is not a list of numbers")
        if len(numbers) != self.size:
            raise self.refused(field, f"has {len(numbers):,} numbers for {self.size:,} tokens")
        return numbers
