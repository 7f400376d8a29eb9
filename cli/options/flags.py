"""Flags of a command, made from fields of configurations as Typer parameters."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from pagedrun.cli.terminal.units import (
    parse_size,
    parse_size_or_auto,
    parse_span,
    show_size,
)
from pagedrun.paged.values.errors import as_flag
from pagedrun.paged.values.flags import FlagField, Form, Panel, flag_fields

TypedValues = Mapping[str, object]
"""Values typed by the user, by option name; options that were not typed are absent."""

_TYPED: dict[Form, type] = {
    Form.SIZE: int,
    Form.SIZE_OR_AUTO: int,  # as its parser returns it; auto is a text
    Form.SPAN: float,
    Form.PROSE: str,
    Form.TEMPLATE: str,
    Form.IDS: list[str],
    Form.NAMES: list[str],
    Form.JSON: str,
    Form.MODEL: str,
}
PARSERS: dict[Form, Callable[[str], float | str]] = {
    Form.SIZE: parse_size,
    Form.SIZE_OR_AUTO: parse_size_or_auto,
    Form.SPAN: parse_span,
}
"""Parsers of typed values; they raise `typer.BadParameter`."""
_PANELS: list[str] = [*Panel]


class Flags:
    """Flags of a command, in the order of its help."""

    def __init__(self, fields: Iterable[FlagField]) -> None:
        self._fields = {each.name: each for each in fields}

    @classmethod
    def of(cls, *configs: type) -> "Flags":
        """Return the flags of the fields of these dataclasses."""
        return cls(each for config in configs for each in flag_fields(config))

    def __iter__(self) -> Iterator[FlagField]:
        return iter(self._fields.values())

    def __add__(self, other: "Flags") -> "Flags":
        return Flags([*self, *other])

    def only(self, *names: str) -> "Flags":
        """Return the flags of these names, in this order."""
        return Flags(self._fields[name] for name in names)

    def by_panel(self, *leading: str) -> "Flags":
        """Return the flags sorted by `Panel`, the `leading` ones first in their panels."""

        def sort_key(each: FlagField) -> tuple[int, int]:
            panel = -1 if each.flag.panel is None else _PANELS.index(each.flag.panel)
            return panel, leading.index(each.name) if each.name in leading else len(leading)

        return Flags(sorted(self, key=sort_key))

    def command(self, body: Callable[[typer.Context, TypedValues], None]) -> Callable[..., None]:
        """Return a Typer command with these flags; `body` receives the typed values."""

        def run(context: typer.Context, **typed: Any) -> None:
            given = {name: value for name, value in typed.items() if value not in (None, [], ())}
            body(context, given)

        context = inspect.Parameter(
            "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        )
        signature = inspect.Signature([context, *map(_parameter, self)])
        # Typer reads signature and annotations.
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__doc__ = body.__doc__
        run.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        return run


def plain_type(field: FlagField) -> Any:
    """Return the type of a typed value: the type of the field without None."""
    if field.flag.form in _TYPED:
        return _TYPED[field.flag.form]
    kind = field.kind
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    return list[str] if get_origin(kind) is tuple else kind


def choices_of(field: FlagField) -> tuple[str, ...]:
    """Return the allowed words of a flag, empty if it takes other values."""
    kind = plain_type(field)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(kind)
    return () if field.flag.rule is None else field.flag.rule.words


def _parameter(field: FlagField) -> inspect.Parameter:
    info = typer.Argument if field.flag.is_argument else typer.Option
    declared = () if field.flag.is_argument else _declared(field)
    metavar = field.flag.metavar or "|".join(choices_of(field)) or None
    settings: dict[str, Any] = {"metavar": metavar, "help": _help(field)}
    if not field.flag.is_argument:
        settings |= {"rich_help_panel": field.flag.panel, "show_default": False}
    if field.flag.low is not None:
        settings["min"] = field.flag.low
    if field.flag.high is not None:
        settings["max"] = field.flag.high
    if field.flag.form in PARSERS:
        settings["parser"] = PARSERS[field.flag.form]
    default, kind = None, _typed(field) | None
    if field.flag.is_argument:
        default = inspect.Parameter.empty if field.default is None else field.default
        kind = _typed(field)
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, info(*declared, **settings)],
    )


def _declared(field: FlagField) -> tuple[str, ...]:
    """Return the spelling of a flag, with the negative form of a switch."""
    if field.flag.declared:
        return field.flag.declared
    flag = as_flag(field.name)
    return (f"{flag}/{as_flag(f'{field.name}=False')}",) if field.kind is bool else (flag,)


def spellings(field: FlagField) -> set[str]:
    """Return the flags of a field as they are typed, with the negative form of a switch."""
    return {each for declared in _declared(field) for each in declared.split("/")}


def _typed(field: FlagField) -> Any:
    """Return the type for Typer; words become an enumeration."""
    kind, words = plain_type(field), choices_of(field)
    if kind is not str or not words:
        return kind
    names = [(word.upper().replace("-", "_"), word) for word in words]
    return StrEnum(field.name, names)


def _help(field: FlagField) -> str:
    if field.flag.is_argument:
        return field.flag.help
    default = field.flag.default or _shown(field)
    return field.flag.help if default is None else f"{field.flag.help} Default: {default}."


def _shown(field: FlagField) -> str | None:
    """Return the default as shown in the help, None without one."""
    match field.default:
        case None | False:
            return None
        case True:
            return "on"
        case int() as size if field.flag.form is Form.SIZE:
            return show_size(size)
        case float() as number:
            return f"{number:g}"
        case value:
            return str(value)
