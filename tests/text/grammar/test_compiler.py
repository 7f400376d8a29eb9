"""Why a structure cannot be compiled: the message says what is in the way, and what to do."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.text.grammar import MAX_BYTES, READY, GrammarCompiler
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


def test_hard_limits_of_a_batch_system_stay(compiler: GrammarCompiler) -> None:
    """They cannot be raised: the process that compiles on trial ended, and each structure was
    refused for time and memory that it had not taken."""
    about = [compiler.tokenizer.to_json(), None, compiler.vocab_size, [IM_END], 10]
    asked = "".join(json.dumps(each) + "\n" for each in (about, ["regex", "[0-9]+"]))
    done = subprocess.run(
        [sys.executable, "-m", "pagedrun.paged.text.grammar"],
        input=asked,
        capture_output=True,
        text=True,
        preexec_fn=_limited,
    )
    assert done.stdout.splitlines() == [json.dumps([READY]), "[]"], done.stderr


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES - 1, MAX_BYTES - 1))
