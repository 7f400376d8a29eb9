"""Dataclasses as JSON."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from pagedrun.paged.files.atomic import json_fields


@dataclass(frozen=True, slots=True)
class Inner:
    where: Path
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outer:
    z: str
    a: Inner
    null: None
    score: float | None = None


def written(value: object) -> str:
    return json.dumps(value, default=json_fields)


def test_fields_are_written_in_the_order_of_their_declaration() -> None:
    inner = Inner(Path("a/b"), (1, 2))
    text = '{"z": "x", "a": {"where": "a/b", "parts": [1, 2]}, "null": null}'
    assert written(Outer("x", inner, None)) == text


def test_a_field_with_a_default_is_written_if_it_has_another_value() -> None:
    outer = Outer("x", Inner(Path(), ()), None, score=0.0)
    assert json.loads(written(outer))["score"] == 0.0


def test_what_is_no_dataclass_is_refused() -> None:
    with pytest.raises(TypeError):
        written({"a": {1}})
