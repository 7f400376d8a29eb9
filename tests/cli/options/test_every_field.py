"""Every sampling field by flag and recipe: what is asked arrives, what is bad names the field."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pagedrun.cli.options.flags import TypedValues
from pagedrun.cli.options.generate_flags import GENERATE
from pagedrun.cli.options.job_flags import job_config
from pagedrun.cli.options.settings import Settings
from pagedrun.paged.values.errors import UsageError, as_flag
from pagedrun.paged.values.flags import FlagField, Form, flag_fields
from pagedrun.paged.values.sampling_params import FIELD_NAMES, SamplingParams
from tests.support.command import Command
from tests.support.every_field import CASES, FieldCase

FIELDS: dict[str, FlagField] = {each.field: each for each in flag_fields(SamplingParams)}


def asked(name: str) -> SamplingParams:
    return SamplingParams(**{name: CASES[name].good})


def test_every_field_has_a_flag_and_a_case() -> None:
    assert set(FIELDS) == set(CASES) == FIELD_NAMES


@pytest.fixture(scope="module")
def typed() -> Callable[..., TypedValues]:
    """Return what `generate` gets from a command line."""
    seen: list[TypedValues] = []
    app = typer.Typer()
    app.command()(GENERATE.command(lambda context, given: seen.append(given)))
    runner = CliRunner()

    def give(*arguments: str) -> TypedValues:
        done = runner.invoke(app, ["in.jsonl", "--model", "demo", *arguments])
        assert done.exit_code == 0, done.output
        return seen.pop()

    return give


def words(name: str, value: Any) -> list[str]:
    """Return a value as flags."""
    flag, form = as_flag(name), FIELDS[name].flag.form
    if isinstance(value, bool):
        return [flag if value else as_flag(f"{name}=False")]
    if isinstance(value, list) and form is not Form.IDS:
        return [f"{flag}={each}" for each in value]
    if isinstance(value, list):
        return [f"{flag}={','.join(map(str, value))}"]
    return [f"{flag}={json.dumps(value) if isinstance(value, dict) else value}"]


@pytest.mark.parametrize("name", CASES)
def test_a_flag_arrives(name: str, typed: Callable[..., TypedValues]) -> None:
    config = job_config(Settings(typed(*words(name, CASES[name].good))))
    assert config.sampling == asked(name)
    assert config.origins[name] == "flag"


@pytest.mark.parametrize("name", [n for n, each in CASES.items() if each.bad_text is not None])
def test_a_bad_flag_is_named(name: str, pagedrun: Command) -> None:
    status, out, err = pagedrun(
        "generate", "in.jsonl", "--model", "demo", f"{as_flag(name)}={CASES[name].bad_text}"
    )
    assert (status, out) == (2, "")
    assert as_flag(name) in err


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[[str], TypedValues]:
    """Return what names a recipe of this text."""

    def write(text: str) -> TypedValues:
        path = tmp_path / "r.yaml"
        path.write_text(text)
        return {"input_name": "in.jsonl", "model": "demo", "recipe": str(path)}

    return write


def line(name: str, value: Any) -> str:
    """Return a line of a recipe; where a text is wanted, an object is written as one."""
    is_text = isinstance(value, dict) and FIELDS[name].flag.form is Form.PROSE
    return f"{name}: {json.dumps(json.dumps(value) if is_text else value)}\n"


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_s_value_arrives(name: str, recipe: Callable[[str], TypedValues]) -> None:
    config = job_config(Settings.of(recipe(line(name, CASES[name].good))))
    assert config.sampling == asked(name)
    assert config.origins[name] == "recipe"


def read(given: TypedValues) -> None:
    settings = Settings.of(given)
    with settings.named():
        job_config(settings)


def bad_line(name: str, case: FieldCase) -> str:
    if case.bad_text is None:
        return f"{name}: 1"
    is_number = isinstance(case.good, int | float)
    return f"{name}: {case.bad_text if is_number else json.dumps(case.bad_text)}"


@pytest.mark.parametrize("name", CASES)
def test_a_bad_value_of_a_recipe_is_named_with_its_line(
    name: str, recipe: Callable[[str], TypedValues]
) -> None:
    given = recipe(f"# a recipe\n{bad_line(name, CASES[name])}\n")
    with pytest.raises(UsageError) as caught:
        read(given)
    assert str(caught.value).startswith(name)
    assert "r.yaml line 2" in str(caught.value)
