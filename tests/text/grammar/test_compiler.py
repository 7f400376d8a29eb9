"""Why a structure cannot be compiled: the message says what is in the way, and what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.text.grammar import GrammarCompiler
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import IM_END

REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"json_schema": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, ("oneOf", "anyOf")),
    ({"json_schema": {"type": "string", "not": {"const": "a"}}}, ('"not"', "x-guidance")),
    ({"json_schema": {"uniqueItems": True}}, ('"uniqueItems"', "x-guidance")),
    ({"json_schema": {"type": "string", "pattern": "^(?=a)b"}}, ("look-ahead",)),
    ({"json_schema": {"$ref": "#"}}, ("no text satisfies it",)),
    ({"regex": "(?<!a)b"}, ("look-behind",)),
    ({"regex": r"(a)\1"}, ("backreferences",)),
    ({"regex": r"\bfoo"}, ("lookarounds",)),
]


@pytest.fixture(scope="module")
def compiler(make_tokenizer: Callable[[], Path]) -> GrammarCompiler:
    return GrammarCompiler(Tokenizer.from_folder(make_tokenizer()), 320, [IM_END])


@pytest.mark.parametrize(("params", "words"), REFUSED)
def test_the_reason_names_what_is_in_the_way(
    compiler: GrammarCompiler, params: dict[str, Any], words: tuple[str, ...]
) -> None:
    structure = SamplingParams(**params).structure
    assert structure is not None
    with pytest.raises(RowError) as refused:
        compiler.compile(structure)
    assert (refused.value.code, refused.value.param) == ("invalid_grammar", structure.field)
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}},
    ],
)
def test_what_the_reason_recommends_compiles(
    compiler: GrammarCompiler, schema: dict[str, Any]
) -> None:
    """And so does a oneOf whose alternatives have no value in common."""
    structure = SamplingParams(json_schema=schema).structure  # type: ignore[arg-type]
    assert structure is not None
    assert compiler.compile(structure).first_mask.any()
