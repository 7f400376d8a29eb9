"""Tokens declared beside tokenizer.json, and special tokens by name.

Transformers adds the tokens of tokenizer_config.json, special_tokens_map.json and added_tokens.json
to those of tokenizer.json, and templates read the named ones as variables. `DeclaredTokens` reads
these files as `PreTrainedTokenizerBase._from_pretrained` of transformers 5 does, for folders of
versions 4 and 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.text.vocabulary.tokenizer_limits import MAX_ID
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue

if TYPE_CHECKING:
    from tokenizers import AddedToken

CONFIG_FILE = "tokenizer_config.json"
MAP_FILE = "special_tokens_map.json"
ADDED_FILE = "added_tokens.json"
TOKENIZER_FILE = "tokenizer.json"
_ENDS = ("bos_token", "eos_token")
_NAMES = (*_ENDS, "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BY_ID = "added_tokens_decoder"
_EXTRA, _OLD_EXTRA = "extra_special_tokens", "additional_special_tokens"
_BY_NAME = "model_specific_special_tokens"
_SPLITS = "split_special_tokens"
_SWITCHES = ("lstrip", "rstrip", "single_word", "normalized", "special")


def read_tokenizer_config(folder: Path) -> JsonObject:
    """Return the contents of tokenizer_config.json, empty without it; `ModelError` if damaged."""
    return _read(folder / CONFIG_FILE)


@dataclass(frozen=True, slots=True)
class DeclaredTokens:
    """Tokens of the files beside tokenizer.json; `origin` is the file with names, `ids_from` that
    with ids.

    `named`: those with a name for templates, such as "bos_token" or "image_token". `extra` have no
    name. `by_id` have an id. `splits`: the text of special tokens is encoded as any other text.
    """

    named: "Mapping[str, AddedToken]"
    extra: "tuple[AddedToken, ...]"
    by_id: "Mapping[int, AddedToken]"
    origin: str
    ids_from: str
    splits: bool = False

    @classmethod
    def read(cls, folder: Path, config: JsonObject) -> "DeclaredTokens":
        """Read the files of a folder, of which `config` is tokenizer_config.json.

        If that has ids, the other files are for older programs, and are not read. Raises
        `ModelError` for a damaged file, and for tokens that are no text.
        """
        splits = config.boolean(_SPLITS, False)
        if config.has(_BY_ID):
            section = config.section(_BY_ID)
            by_id = {_id(section, each): _token(section, each) for each in section.fields}
            return replace(cls._of(config, by_id), splits=splits)
        special, added = _read(folder / MAP_FILE), _read(folder / ADDED_FILE)
        listed = [
            *_listed(config),
            *(each for each in _listed(special) if each not in _listed(config)),
        ]
        merged = {**config.fields, **special.fields, **({_EXTRA: listed} if listed else {})}
        origin = special.origin if special.fields else config.origin
        found = cls._of(JsonObject(origin, merged), {})
        return replace(found._with_ids(added), splits=splits)

    @classmethod
    def _of(cls, config: JsonObject, by_id: "Mapping[int, AddedToken]") -> "DeclaredTokens":
        """Return the tokens of a tokenizer_config.json, whose ids are `by_id`."""
        named: dict[str, JSONValue] = {}
        for name in (_BY_NAME, _EXTRA):
            value = config.get(name)
            named |= value if isinstance(value, dict) else {}
        named |= {
            name: value
            for name, value in config.fields.items()
            if name in _NAMES or (name.endswith("_token") and isinstance(value, str | dict))
        }
        fields = JsonObject(config.origin, named)
        known = {each.content: each for each in by_id.values()}
        tokens = {name: _token(fields, name, special=True) for name in named if fields.has(name)}
        extra = _listed(config) or _listed(config, _OLD_EXTRA)
        numbered = JsonObject(
            f"{config.origin}: {_EXTRA}", {str(i): each for i, each in enumerate(extra)}
        )
        return cls(
            {name: known.get(each.content, each) for name, each in tokens.items()},
            tuple(_token(numbered, each, special=True) for each in numbered.fields),
            by_id,
            config.origin,
            config.origin,
        )

    def _with_ids(self, added: JsonObject) -> "DeclaredTokens":
        """Return the tokens with ids by their texts, from added_tokens.json."""
        from tokenizers import AddedToken

        special = {each.content for each in (*self.named.values(), *self.extra)}
        by_id = {
            added.integer(_text(added, text, text), 0, MAX_ID): AddedToken(
                text, special=text in special, normalized=text not in special
            )
            for text in added.fields
        }
        known = {each.content: each for each in by_id.values()}
        named = {name: known.get(each.content, each) for name, each in self.named.items()}
        return replace(self, named=named, by_id=by_id, ids_from=added.origin)

    def without_ids(self, backend: Any) -> frozenset[str]:
        """Return the texts of the tokens that neither these files nor tokenizer.json, read as
        `backend`, give an id.

        They get the next ids, for which a model may have no vectors. Raises `ModelError` for one
        that begins or ends sequences.
        """
        given = {each.content for each in (*self.by_id.values(), *self.extra)}
        for name in _ENDS:
            token = self.named.get(name)
            if token and token.content not in given and backend.token_to_id(token.content) is None:
                raise ModelError(
                    f"{self.origin}: {name} is {ascii(token.content)[:80]}; it must be a token of "
                    f"{TOKENIZER_FILE}, which has no such token"
                )
        given = {each.content for each in self.by_id.values()}
        texts = {each.content for each in (*self.named.values(), *self.extra)}
        return frozenset(each for each in texts - given if backend.token_to_id(each) is None)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a `PreTrainedTokenizerFast` that adds the tokens."""
        others = {name: each for name, each in self.named.items() if name not in _NAMES}
        return {
            **{name: each for name, each in self.named.items() if name in _NAMES},
            _BY_NAME: others,
            _EXTRA: list(self.extra),
            _BY_ID: dict(self.by_id),
            _SPLITS: self.splits,
        }

    def check(self, backend: Any) -> None:
        """Raise `ModelError` unless the tokens, added to `backend`, have the ids of the files."""
        for token_id, token in self.by_id.items():
            found = backend.token_to_id(token.content)
            if found != token_id:
                raise ModelError(
                    f"{self.ids_from}: {ascii(token.content)[:80]} has the id {token_id}, but "
                    f"{TOKENIZER_FILE} leads to {found}; correct or remove the wrong one"
                )


def _read(path: Path) -> JsonObject:
    return JsonObject.read(path) if path.exists() else JsonObject(str(path), {})


def _listed(config: JsonObject, name: str = _EXTRA) -> list[JSONValue]:
    """Return a list of tokens without names, empty without one; named ones are an object."""
    value = config.get(name)
    if value is None or (isinstance(value, dict) and name == _EXTRA):
        return []
    if not isinstance(value, list):
        raise config.error(name, "a list of tokens")
    return value


def _id(section: JsonObject, number: str) -> int:
    if not number.isdecimal() or int(number[:9]) > MAX_ID or len(number) > 9:
        raise ModelError(f"{section.origin} has {ascii(number)[:80]}, which is no token id")
    return int(number)


def _token(section: JsonObject, name: str, **switches: bool) -> "AddedToken":
    """Return the token under a name: a text, or an object with its `content` and matching options.

    switches: options that it does not give itself.
    """
    from tokenizers import AddedToken

    value = section.get(name)
    options = value if isinstance(value, dict) else {}
    text = _text(section, name, options.get("content") if isinstance(value, dict) else value)
    given = {each: options[each] for each in _SWITCHES if isinstance(options.get(each), bool)}
    return AddedToken(text, **{**switches, **given})


def _text(section: JsonObject, name: str, text: JSONValue) -> str:
    """Return the text of a token."""
    if isinstance(text, str) and any("\ud800" <= each <= "\udfff" for each in text):
        shown = ascii(name)[1:-1][:80]
        raise ModelError(f"{section.origin}: {shown} has half a surrogate pair; correct its text")
    if not isinstance(text, str) or not text:
        raise section.error(name, "the text of a token")
    return text
