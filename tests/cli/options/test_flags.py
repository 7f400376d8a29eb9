"""Flags are made from the fields of configurations: adding a field with one is all it takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE
from pagedrun.cli.options.reading import read
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.flags import Flag, Form, check_fields
from pagedrun.paged.values.rules import integers, one_of


class Colour(StrEnum):
    RED = "red"
    DARK_RED = "dark-red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    source: Annotated[str, Flag("Where from.", metavar="SOURCE", is_argument=True)]
    colour: Annotated[Colour, Flag("In which colour.")] = Colour.RED
    finish: Annotated[str, Flag("Its finish.", rule=one_of(("matt", "silk")))] = "matt"
    size: Annotated[int, Flag("How large.", metavar="SIZE", form=Form.SIZE)] = 2**30
    coats: Annotated[int | None, Flag("Coats of it.", metavar="N", rule=integers(1))] = None
    layers: Annotated[int, Flag("Layers.", metavar="N", low=1, name="num_layers")] = 2
    words: Annotated[tuple[str, ...], Flag("Words on it.")] = ()
    note: Annotated[str | None, Flag("Text, or @file.", form=Form.PROSE)] = None
    ids: Annotated[tuple[int, ...], Flag("Token ids.", form=Form.IDS)] = ()
    smooth: Annotated[bool, Flag("Whether it is smooth.")] = True
    path: Annotated[Path | None, Flag("A place.")] = None
    hidden: int = 3

    def __post_init__(self) -> None:
        check_fields(self)


Typed = Callable[..., TypedValues]


@pytest.fixture
def typed() -> Typed:
    """Return what a command with the flags of a wall gets from a command line."""
    seen: list[TypedValues] = []

    def take(context: typer.Context, given: TypedValues) -> None:
        seen.append(given)

    app = typer.Typer()
    app.command()(Flags.of(Wall).command(take))

    def run(*words: str) -> TypedValues:
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return seen[-1]

    return run


def test_what_is_not_typed_keeps_its_default(typed: Typed) -> None:
    given = typed("brick")
    assert given == {"source": "brick"}
    assert read(Wall, given) == Wall(source="brick")


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--colour", "dark-red"], "colour", Colour.DARK_RED),
        (["--finish", "silk"], "finish", "silk"),
        (["--size", "4KiB"], "size", 4096),
        (["--coats", "3"], "coats", 3),
        (["--num-layers", "5"], "layers", 5),
        (["--words", "a", "--words", "b"], "words", ("a", "b")),
        (["--note", "plain"], "note", "plain"),
        (["--ids", "1,2", "--ids", "3"], "ids", (1, 2, 3)),
        (["--no-smooth"], "smooth", False),
        (["--path", "here"], "path", Path("here")),
    ],
)
def test_what_is_typed_gets_the_type_of_its_field(
    typed: Typed, words: Sequence[str], field: str, value: object
) -> None:
    found = getattr(read(Wall, typed("brick", *words)), field)
    assert (type(found), found) == (type(value), value)


def test_what_is_known_wins_and_what_is_typed_is_checked(typed: Typed) -> None:
    assert read(Wall, typed("brick", "--coats", "3"), coats=4).coats == 4
    with pytest.raises(UsageError, match=r"^coats is 0; it must be an integer of at least 1$"):
        read(Wall, typed("brick", "--coats", "0"))


def test_python_users_get_the_same_checks() -> None:
    with pytest.raises(UsageError, match=r"^num_layers is 0; it must be at least 1$") as caught:
        Wall(source="x", layers=0)
    assert caught.value.field == "num_layers"
    with pytest.raises(UsageError, match=r"^finish is 'wet'; choose one of matt, silk$"):
        Wall(source="x", finish="wet")
    with pytest.raises(UsageError, match=r"^limit is 0; it must be at least 1$"):
        JobConfig(input="x", output="y", engine=EngineConfig(Path()), limit=0)


def test_the_help_tells_the_default() -> None:
    app = typer.Typer()
    app.command()(Flags.of(Wall).command(lambda context, given: None))
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for told in ("Default: red.", "Default: matt.", "Default: 1.0 GiB.", "Default: on.", "SOURCE"):
        assert told in shown
    assert "hidden" not in shown


def test_some_flags_of_a_command_in_another_order() -> None:
    names = [each.name for each in GENERATE.only("quiet", "model") + Flags.of(Wall).only("ids")]
    assert names == ["quiet", "model", "ids"]
