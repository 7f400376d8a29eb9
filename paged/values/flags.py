"""Flag: declaration of a configuration field's command-line option, written beside the field.

    block_size: Annotated[int, Flag("Tokens in a block.", Panel.MEMORY, "N", rule=integers(1))] = 16

This is all that a new flag takes: `generate` builds its flags from these declarations, recipes
their settings, and the configuration itself checks the rule.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.rules import Rule


class Panel(StrEnum):
    """The flags of `generate` in groups, in the order in which its help shows them."""

    FILES = "Files"
    MODEL = "Model"
    PROMPTS = "Prompts"
    SAMPLING = "Sampling"
    STRUCTURE = "Structured output"
    MEMORY = "Memory and batching"
    PREFIXES = "Shared prefixes"
    REPLICAS = "Several machines"
    DISPLAY = "Display"


class Form(Enum):
    """Input syntax of a value that differs from its type."""

    PLAIN = "plain"
    SIZE = "size"  # bytes: a number, or such as 4GiB
    SIZE_OR_AUTO = "size or auto"
    SPAN = "span"  # seconds: a number, or such as 90s or 1h30m
    PROSE = "prose"  # text, or @file
    TEMPLATE = "template"  # a Jinja template, text or @file
    EXPRESSION = "expression"  # text that is never a file's name
    IDS = "ids"  # token ids, comma separated or repeated
    JSON = "json"  # a value as JSON
    NAMES = "names"  # one or several, each a word
    MODEL = "model"  # a folder, or a name on the hub


@dataclass(frozen=True, slots=True)
class Flag:
    """Command-line option of a field: its `help`, and `metavar`, the name of its value.

    `default` replaces the field's default in the help. `low` and `high` bound a number and are
    checked by the command-line parser; `rule` has all other checks. `name` and `declared` override
    the option's name and spellings. `is_argument`: a positional argument.
    """

    help: str
    panel: str | None = None
    metavar: str | None = None
    default: str | None = None
    low: float | None = None
    high: float | None = None
    rule: Rule | None = None
    form: Form = Form.PLAIN
    name: str | None = None
    declared: tuple[str, ...] = ()
    is_argument: bool = False


@dataclass(frozen=True, slots=True)
class FlagField:
    """A field that has a flag: `kind` is its type, `default` its default, None without one."""

    field: str
    kind: Any
    default: object
    flag: Flag

    @property
    def name(self) -> str:
        """The option's name, as flags, recipes and messages have it."""
        return self.flag.name or self.field


@cache
def flag_fields(config: type) -> tuple[FlagField, ...]:
    """Return the fields of a dataclass with a flag, in order."""
    hints = get_type_hints(config, include_extras=True)
    found = []
    for each in fields(config):
        for flag in getattr(hints[each.name], "__metadata__", ()):
            default = each.default if isinstance(each.default, _PLAIN) else None
            kind = hints[each.name].__origin__
            found.append(FlagField(each.name, kind, default, flag))
    return tuple(found)


def check_fields(config: Any) -> None:
    """Raise `UsageError` of the first field whose value its flag does not allow.

    None is allowed where it is the default.
    """
    for each, why in _refused(config):
        raise UsageError(f"{option(each.name)} is {getattr(config, each.field)!r}; {why}")


def _refused(config: Any) -> Iterator[tuple[FlagField, str]]:
    kind: type = type(config)
    for each in flag_fields(kind):
        value, flag = getattr(config, each.field), each.flag
        if value is None and each.default is None:
            continue
        if each.kind is bool and not isinstance(value, bool):
            yield each, "it must be True or False"
        if (flag.low is not None or flag.high is not None) and not _is_number(value):
            yield each, "it must be a number"
        if flag.low is not None and not value >= flag.low:
            yield each, f"it must be at least {flag.low:g}"
        if flag.high is not None and not value <= flag.high:
            yield each, f"it must be at most {flag.high:g}"
        if flag.rule is not None and not flag.rule.accepts(value):
            yield each, flag.rule.way_out


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_PLAIN = (bool, int, float, str, Path)
