"""YamlField: one key of a recipe and its value, with its line.

The value is read as what its setting wants, not as what YAML 1.1 would make of it: `stop: [no]` is
the text "no", not false, and `1e-3` is a number.
"""

import json
import re
from dataclasses import dataclass
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
    """`file` is the recipe as messages name it, `line` is counted from 1, `node` is PyYAML's.

    The readers raise `UsageError`, which names key, file and line, for a value of another kind.
    """

    file: str
    name: str
    line: int
    node: Any

    @property
    def place(self) -> str:
        """How messages name the key."""
        return f"{self.name} in {self.file} line {self.line}"

    def error(self, what: str) -> UsageError:
        """Return the error whose sentence goes on with `what`."""
        return UsageError(f"{self.place} {what}")

    def text(self) -> str:
        """Return a text as it is written; numbers and words such as `no` are texts too."""
        return self._text_of(self.node, "text")

    def texts(self) -> list[str]:
        """Return a list of texts; a single one is read as a list of one."""
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
        """Return JSON: text that is, or what YAML writes without quotes, as JSON."""
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
        """Return what is written without quotes."""
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
