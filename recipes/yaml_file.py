"""A YAML file as its top-level keys, read with limits and without making anything of its tags."""

from pathlib import Path
from typing import Any

import yaml

from pagedrun.paged.values.errors import UsageError
from pagedrun.recipes.yaml_field import YamlField

MAX_BYTES = 2**18  # longer prompts go into a file of their own: system: "@system.txt"
MAX_DEPTH = 4


def read_bytes(path: Path, shown: str) -> bytes:
    """Return what is in the file that messages call `shown`; `UsageError` if it cannot be read or
    is too large.
    """
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

    A file without any, of comments alone, is refused unless it `may_be_empty`. Raises `UsageError`
    with file and line for what is no YAML, for a key given twice, and for aliases and deep nesting,
    which no such file needs and which can make a small one a huge value.
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
    """Look at the file as a stream of events, before anything follows its nesting."""
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
