"""Reader of the top-level keys of a YAML file, with limits and without constructing tags.

The type of a value follows from its setting instead of YAML 1.1: `stop: [no]` is the text "no" and
`1e-3` is a number.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from pagedrun.paged.values.errors import UsageError

MAX_SHOWN = 40
_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9_]{0,24})", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,24}\.?[0-9]{0,24}|\.[0-9]{1,24})(?:[eE][+-]?[0-9]{1,3})?")
_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = frozenset(_TAG + kind for kind in ("str", "int", "float", "bool", "timestamp"))


@dataclass(frozen=True, slots=True)
class YamlField:
    """Key of a YAML file: its file and line (from 1) for messages, and its PyYAML node.

    The readers raise `UsageError` with key, file and line for a value of another type.
    """

    file: str
    name: str
    line: int
    node: Any

    @property
    def place(self) -> str:
        """Name of the key for messages, with file and line."""
        return f"{self.name} in {self.file} line {self.line}"

    def error(self, what: str) -> UsageError:
        """Return an error about the key; `what` continues the sentence."""
        return UsageError(f"{self.place} {what}")

    def text(self) -> str:
        """Return a text unchanged; numbers and words such as `no` are texts too."""
        return self._text_of(self.node, "text")

    def texts(self) -> list[str]:
        """Return a list of texts, of length one for a single text."""
        wanted = "text, or a list of texts"
        if isinstance(self.node, yaml.SequenceNode):
            return [self._text_of(item, wanted) for item in self.node.value]
        return [self._text_of(self.node, wanted)]

    def mapping(self) -> dict[str, str]:
        """Return a mapping of texts to texts."""
        wanted = "a mapping of names to texts"
        if not isinstance(self.node, yaml.MappingNode):
            raise self._unfit(wanted)
        pairs: dict[str, str] = {}
        for key, value in self.node.value:
            name = self._text_of(key, wanted)
            if name in pairs:
                line = key.start_mark.line + 1
                raise UsageError(f"{self.name} in {self.file} names {name!r} again in line {line}")
            pairs[name] = self._text_of(value, wanted)
        return pairs

    def json(self) -> str:
        """Return a JSON text, or a YAML value converted to JSON."""
        if isinstance(self.node, yaml.ScalarNode):
            return self.text()
        try:
            return json.dumps(SafeConstructor().construct_document(self.node))
        except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
            raise self.error(
                "contains a value that JSON does not have; put JSON into quotes"
            ) from error

    def integer(self) -> int:
        """Return an integer."""
        wanted = "an integer"
        text = self._plain(wanted)
        if not _INTEGER.fullmatch(text):
            raise self._unfit(wanted)
        return int(text)

    def number(self) -> float:
        """Return a number; `1`, `.5` and `1e-3` are numbers."""
        wanted = "a number"
        text = self._plain(wanted)
        if not _NUMBER.fullmatch(text):
            raise self._unfit(wanted)
        return float(text)

    def switch(self) -> bool:
        """Return true or false."""
        wanted = "true or false"
        text = self._plain(wanted).lower()
        if self.node.tag != _TAG + "bool":
            raise self._unfit(wanted)
        return text in ("true", "yes", "on")

    def _plain(self, wanted: str) -> str:
        """Return an unquoted scalar."""
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag == _TAG + "null":
            raise self._unfit(wanted)
        if self.node.style is not None:
            raise self._unfit(f"{wanted}, without quotes")
        return str(self.node.value)

    def _text_of(self, node: Any, wanted: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALAR_TAGS:
            raise self._unfit(wanted)
        text = str(node.value)
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise self.error("contains half of a surrogate pair; write the character itself")
        return text

    def _unfit(self, wanted: str) -> UsageError:
        node = self.node
        if not isinstance(node, yaml.ScalarNode):
            kind = "a mapping" if isinstance(node, yaml.MappingNode) else "a list"
            hint = "; put text with { or [ into quotes" if "text" in wanted else ""
            return self.error(f"is {kind}; it must be {wanted}{hint}")
        if node.tag == _TAG + "null":
            return self.error(f"has no value; it must be {wanted}, or leave the line out")
        if node.tag not in _SCALAR_TAGS:
            return self.error(f"has a YAML tag; it must be plain, {wanted}")
        text = str(node.value)
        shown = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
        return self.error(f"is {shown!r}; it must be {wanted}")


MAX_BYTES = 2**18  # longer prompts belong into a separate file: system: "@system.txt"
MAX_DEPTH = 4


def read_bytes(path: Path, shown: str) -> bytes:
    """Return the contents of a file, called `shown` in messages; `UsageError` if unreadable or too
    large."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{shown}: the file cannot be read ({error.strerror})") from error
    if len(content) > MAX_BYTES:
        raise UsageError(
            f"{shown}: larger than {MAX_BYTES >> 10} KiB; put long texts into files of "
            'their own, such as system: "@system.txt"'
        )
    return content


def parse_fields(content: bytes, shown: str, *, may_be_empty: bool = False) -> list[YamlField]:
    """Return the keys of the mapping in `content`, in order.

    A file of comments only is refused unless `may_be_empty`. Raises `UsageError` with file and line
    for invalid YAML, for a duplicate key, and for aliases and deep nesting, which can expand a
    small file to a huge value.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{shown} line {line}: not UTF-8 text") from error
    try:
        _refuse_nesting(text, shown)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{shown}{where}: not valid YAML ({error.problem})") from error
    except yaml.YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise UsageError(f"{shown} line {line}: a character that YAML does not allow") from error
    if root is None and may_be_empty:
        return []
    if not isinstance(root, yaml.MappingNode) or not root.value:
        raise UsageError(f"{shown}: it must be a mapping of settings, such as max_tokens: 64")
    return _fields(root, shown)


def _refuse_nesting(text: str, shown: str) -> None:
    """Check nesting and aliases in the stream of events, before the tree is composed."""
    depth = 0
    event: Any
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise UsageError(
                f"{shown} line {line}: *{event.anchor} is an alias; write its value instead, or "
                "put quotes around a text that begins with *"
            )
        if depth > MAX_DEPTH:
            raise UsageError(f"{shown} line {line}: nested more than {MAX_DEPTH} deep")


def _fields(root: Any, shown: str) -> list[YamlField]:
    fields: dict[str, YamlField] = {}
    for key, value in root.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{shown} line {line}: a key must be the name of a setting")
        name = str(key.value)
        if name in fields:
            raise UsageError(
                f"{name} in {shown} line {line}: given twice, first in line {fields[name].line}"
            )
        fields[name] = YamlField(shown, name, line, value)
    return list(fields.values())
