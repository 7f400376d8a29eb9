"""Tokenizer of a GGUF file, built from the file's own fields.

The rules are those of llama.cpp (src/llama-vocab.cpp): `tokenizer.ggml.model` determines how tokens
are found, `tokenizer.ggml.pre` how text is split before that (gguf_pre_tokenizers.py).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pagedrun.paged.files.gguf import GgufFile
from pagedrun.paged.files.gguf_vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    SPECIAL_IDS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    GgufVocabulary,
)
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.text.vocabulary.gguf_pre_tokenizers import GEMMA4, PRE_TOKENIZERS, PreTokenizer
from pagedrun.paged.text.vocabulary.tokenizer_limits import refuse_growth, refuse_long_piece
from pagedrun.paged.values.json_value import JSONValue

_SPACE = "▁"
# Ids of special tokens that a file need not name, by tokenizer.ggml.model. That of "gpt2" in
# llama.cpp is 11, the end of text of Falcon alone: there the file has to name them.
_DEFAULT_IDS = {
    "llama": {"bos_token": 1, "eos_token": 2, "unk_token": 0},
    "bert": {
        "pad_token": 0,
        "unk_token": 100,
        "cls_token": 101,
        "sep_token": 102,
        "mask_token": 103,
    },
    "t5": {"pad_token": 0, "eos_token": 1, "unk_token": 2},
}
_MAX_CHARS_OF_WORD = 100  # of WordPiece; longer words are unknown
_WITHOUT_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")


def read_gguf_tokenizer(path: Path) -> tuple[Any, JsonObject]:
    """Return a `tokenizers.Tokenizer`, and the contents of a tokenizer_config.json for it.

    Raises `ModelError` that names the field for a kind of tokenizer or of splitting that is
    unknown, and for fields that contradict each other.
    """
    file = GgufFile.open(path)
    vocabulary = GgufVocabulary(file)
    try:
        backend = _Builder(vocabulary).build()
    except BaseException as error:  # a panic in Rust is not an Exception
        if not _is_from_rust(error):
            raise
        why = f"is no vocabulary of {vocabulary.model} ({str(error)[:120]})"
        raise vocabulary.refused("tokens", why) from error
    refuse_growth(backend, path)
    template = vocabulary.fields.string("tokenizer.chat_template")
    config: dict[str, JSONValue] = {**_special_tokens(vocabulary), "chat_template": template}
    return backend, JsonObject(str(path), config)


def _is_from_rust(error: BaseException) -> bool:
    """Return true for an error of the library, and for its panics, which are no Exception."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


def _special_tokens(vocabulary: GgufVocabulary) -> dict[str, str]:
    """Return the texts of the special tokens by their names in chat templates."""
    tokens = vocabulary.tokens
    defaults = _DEFAULT_IDS.get(vocabulary.model, {})
    known = {name: tokens[each] for name, each in defaults.items() if each < len(tokens)}
    return {**known, **vocabulary.special_tokens}


class _Builder:
    """Builds a `tokenizers.Tokenizer` from a vocabulary; see `build`."""

    def __init__(self, vocabulary: GgufVocabulary) -> None:
        self.vocabulary = vocabulary
        self.tokens = vocabulary.tokens
        self.special_tokens = _special_tokens(vocabulary)

    def build(self) -> Any:
        """Return the tokenizer, with all special tokens and what it puts around texts."""
        kinds = {
            "gpt2": self._byte_pairs,
            "gemma4": self._byte_pairs,
            "llama": self._sentencepiece,
            "bert": self._wordpiece,
            "t5": self._unigram,
        }
        model = self.vocabulary.model
        if model not in kinds:
            raise self.vocabulary.refused(
                "model", f"is {ascii(model)[:80]}, but pagedrun reads {', '.join(kinds)}"
            )
        backend = kinds[model]()
        self._add_tokens(backend)
        backend.post_processor = self._surrounding()
        return backend

    def _pre_tokenizer(self) -> PreTokenizer:
        """Return the pre-tokenizer of byte pairs.

        A file without a name of one is refused. llama.cpp splits it by "default", with a warning
        that answers will be worse: no model was trained so, and a row would not say it.
        """
        vocabulary = self.vocabulary
        if vocabulary.model == "gemma4":
            return GEMMA4
        name = vocabulary.name("pre")
        if not name:
            raise vocabulary.refused(
                "pre", "is missing, so that nothing says how the model's texts are split"
            )
        if name not in PRE_TOKENIZERS:
            raise vocabulary.refused(
                "pre", f"is {ascii(name)[:80]}, and pagedrun does not know how that splits texts"
            )
        return PRE_TOKENIZERS[name]

    def _byte_pairs(self) -> Any:
        from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
        from tokenizers.models import BPE

        pre = self._pre_tokenizer()
        backend = Tokenizer(
            BPE(
                vocab=dict(self.vocabulary.ids),
                merges=self._merges(),
                ignore_merges=pre.ignore_merges,
                byte_fallback=not pre.byte_level,
            )
        )
        splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in pre.regexes]
        if pre.byte_level:
            as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, as_bytes])
            backend.decoder = decoders.ByteLevel()
        else:
            backend.normalizer = normalizers.Replace(" ", _SPACE)
            backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
            backend.decoder = self._joined(strip=False)
        return backend

    def _merges(self) -> list[tuple[str, str]]:
        """Return the pairs of tokens that are merged, first those merged first."""
        ids, merges = self.vocabulary.ids, []
        for merge in self.vocabulary.texts("merges"):
            left, _, right = merge[1:].partition(" ")
            left = merge[:1] + left
            if not (right and left in ids and right in ids and left + right in ids):
                raise self.vocabulary.refused(
                    "merges", f"has {ascii(merge)[:80]}, which does not make a token of two"
                )
            merges.append((left, right))
        if not merges:
            raise self.vocabulary.refused("merges", "is missing or empty")
        return list(dict.fromkeys(merges))

    def _sentencepiece(self) -> Any:
        """Return SentencePiece's byte pairs: the merge with the best score is made first."""
        from tokenizers import Tokenizer, normalizers
        from tokenizers.models import BPE

        backend = Tokenizer(
            BPE(
                vocab=dict(self.vocabulary.ids),
                merges=self._scored_merges(),
                unk_token=self.special_tokens.get("unk_token"),
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        prefixed = self.vocabulary.flag("add_space_prefix", True)
        spaces = normalizers.Replace(" ", _SPACE)
        backend.normalizer = (
            normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefixed else spaces
        )
        backend.decoder = self._joined(strip=prefixed)
        return backend

    def _scored_merges(self) -> list[tuple[str, str]]:
        """Return each pair of tokens that makes a token, the best score first.

        Pairs of one token follow each other as in Transformers' converter.
        """
        vocabulary, mergeable = self.vocabulary, (NORMAL, USER_DEFINED, UNUSED)
        ids, found = vocabulary.ids, []
        for token, score, kind in zip(
            self.tokens, vocabulary.scores, vocabulary.types, strict=True
        ):
            if kind in mergeable:
                for cut in range(1, len(token)):
                    left, right = token[:cut], token[cut:]
                    if left in ids and right in ids:
                        found.append((-score, -cut, ids[left], ids[right], left, right))
        found.sort()
        return [(left, right) for *_, left, right in found]

    def _joined(self, *, strip: bool) -> Any:
        """Return the decoder of tokens with ▁ for spaces, and tokens of bytes."""
        from tokenizers import decoders

        steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)

    def _wordpiece(self) -> Any:
        """Return WordPiece: llama.cpp begins words with ▁, the library continues them with ##."""
        from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
        from tokenizers.models import WordPiece

        vocabulary = self.vocabulary
        pieces = list(map(_word_piece, self.tokens, vocabulary.types))
        if len(set(pieces)) != len(pieces):
            raise vocabulary.refused("tokens", "has the same token twice, once as part of a word")
        unknown = self.special_tokens.get("unk_token")
        if unknown is None:
            raise vocabulary.refused("unknown_token_id", "is missing")
        backend = Tokenizer(
            WordPiece(
                vocab={piece: number for number, piece in enumerate(pieces)},
                unk_token=unknown,
                max_input_chars_per_word=_MAX_CHARS_OF_WORD,
            )
        )
        lowercase = vocabulary.flag("normalizer.lowercase", True)
        backend.normalizer = normalizers.BertNormalizer(
            lowercase=lowercase,
            strip_accents=vocabulary.flag("normalizer.strip_accents", lowercase),
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        self.tokens = pieces
        return backend

    def _unigram(self) -> Any:
        """Return SentencePiece's unigrams: the split with the best sum of scores."""
        from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
        from tokenizers.models import Unigram

        vocabulary = self.vocabulary
        refuse_long_piece(Path(vocabulary.fields.origin), max(map(len, self.tokens)))
        unknown = vocabulary.special_id("unknown_token_id", _DEFAULT_IDS["t5"]["unk_token"])
        scores = (
            0.0 if kind == USER_DEFINED else score
            for score, kind in zip(vocabulary.scores, vocabulary.types, strict=True)
        )
        backend = Tokenizer(
            Unigram(list(zip(self.tokens, scores, strict=True)), unknown, BYTE in vocabulary.types)
        )
        steps: list[Any] = []
        character_map = vocabulary.bytes("precompiled_charsmap")
        if character_map:
            steps.append(normalizers.Precompiled(character_map))
        if vocabulary.flag("remove_extra_whitespaces", False):
            steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
        if steps:
            backend.normalizer = normalizers.Sequence(steps)
        scheme = "always" if vocabulary.flag("add_space_prefix", False) else "never"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, scheme)
        backend.decoder = decoders.Metaspace(_SPACE, scheme)
        return backend

    def _add_tokens(self, backend: Any) -> None:
        """Let tokens that are no text of the model be recognized in texts as they are."""
        from tokenizers import AddedToken

        strips_right = any(each in self._model_name() for each in ("phi-3", "phi3"))
        strips_left = {"<mask>"} | ({"[MASK]"} if self._pre() == "modern-bert" else set())
        added = [
            AddedToken(
                text,
                special=kind != USER_DEFINED,
                normalized=False,
                lstrip=text in strips_left,
                rstrip=strips_right and text not in _WITHOUT_STRIPPING,
            )
            for text, kind in zip(self.tokens, self.vocabulary.types, strict=True)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ]
        backend.add_tokens(added)

    def _model_name(self) -> str:
        return (self.vocabulary.fields.string("general.name") or "").lower()

    def _pre(self) -> str | None:
        return self.vocabulary.name("pre")

    def _surrounding(self) -> Any:
        """Return what puts special tokens around a text, or the two of a pair; None for none."""
        from tokenizers.processors import TemplateProcessing

        vocabulary, model = self.vocabulary, self.vocabulary.model
        if model == "bert":
            first, between, last = self._named("cls"), self._named("sep"), self._named("sep")
            second_type = "1"
        else:
            defaults = self._pre_tokenizer() if model in ("gpt2", "gemma4") else None
            begins = model == "llama" if defaults is None else defaults.adds_bos
            separates = defaults is not None and defaults.adds_sep
            if defaults is not GEMMA4:
                begins = vocabulary.flag("add_bos_token", begins)
            first = self._named("bos") if begins else []
            last = self._named("eos") if vocabulary.flag("add_eos_token", model == "t5") else []
            between = [*last, *(self._named("sep") if self._flagged(separates) else first)]
            second_type = "1" if model in ("llama", "gpt2", "gemma4") else "0"
        if not (first or between or last):
            return None
        return TemplateProcessing(
            single=[*_typed(first, "0"), "$A:0", *_typed(last, "0")],
            pair=[
                *_typed(first, "0"),
                "$A:0",
                *_typed(between, "0"),
                f"$B:{second_type}",
                *_typed(last, second_type),
            ],
            special_tokens=[(text, self.tokens.index(text)) for text in {*first, *between, *last}],
        )

    def _flagged(self, separates: bool) -> bool:
        return self.vocabulary.flag("add_sep_token", separates)

    def _named(self, name: str) -> list[str]:
        """Return a special token that the file puts around texts, and so has to have."""
        text = self.special_tokens.get(f"{name}_token")
        if text is None:
            raise self.vocabulary.refused(
                SPECIAL_IDS[f"{name}_token"], "is missing, but texts begin or end with this token"
            )
        if text not in self.tokens:
            raise self.vocabulary.refused(
                SPECIAL_IDS[f"{name}_token"], f"leads to {text[:40]!r}, which is no special token"
            )
        return [text]


def _typed(tokens: Iterable[str], type_id: str) -> list[str]:
    return [f"{token}:{type_id}" for token in tokens]


def _word_piece(token: str, kind: int) -> str:
    """Return a token of llama.cpp's as the library has it."""
    is_bracketed = len(token) > 2 and token.startswith("[") and token.endswith("]")
    if kind in (CONTROL, UNKNOWN, USER_DEFINED) or is_bracketed:
        return token
    return token[1:] if token.startswith(_SPACE) else f"##{token}"
