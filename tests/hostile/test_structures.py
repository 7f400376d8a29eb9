"""Schemas, expressions and grammars made to take for ever, or all memory, or to end the process."""

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.text.grammar import GrammarCompiler, Grammars
from pagedrun.paged.text.structured_answer import GrammarMatcher
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.paged.values.structure import Structure
from tests.conftest import IM_END

MAX_MORE_BYTES = 1 << 30
NUM_TOKENS = 40


def doubled(depth: int) -> dict[str, Any]:
    """Return definitions each of which has the one before twice."""
    made: dict[str, Any] = {"d0": {"type": "string"}}
    for level in range(1, depth):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        made[f"d{level}"] = {"allOf": [below, below]}
    return made


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def one_of_many(count: int) -> list[dict[str, Any]]:
    return [{"properties": {f"p{i}": {"enum": [0, 1, 2, 3]}}} for i in range(count)]


HOSTILE: dict[str, dict[str, Any]] = {
    "deep": {"json_schema": nested(30)},
    "deeper": {"json_schema": nested(200)},
    "ten thousand deep": {"json_schema": nested(10_000)},
    "ten thousand deep in text": {"json_schema": '{"items":' * 10_000 + "{}" + "}" * 10_000},
    "a hundred thousand values": {"json_schema": {"enum": list(range(100_000))}},
    "ten megabytes": {"json_schema": {"description": "x" * 10_000_000}},
    "doubled": {"json_schema": {"$defs": doubled(40), "$ref": "#/$defs/d39"}},
    "itself": {"json_schema": {"$ref": "#"}},
    "each other": {
        "json_schema": {
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}},
            "$ref": "#/$defs/a",
        }
    },
    "elsewhere": {"json_schema": {"$ref": "https://example.com/schema.json"}},
    "every way": {
        "json_schema": {"allOf": [{"oneOf": one_of_many(4)} for _ in range(12)]},
    },
    "many choices": {"json_schema": {"enum": [f"item {i}" for i in range(4000)]}},
    "many names": {
        "json_schema": {
            "type": "object",
            "properties": {f"p{i}": {"type": "string"} for i in range(1500)},
        }
    },
    "long": {"json_schema": {"type": "string", "minLength": 10**6, "maxLength": 10**9}},
    "many items": {"json_schema": {"type": "array", "minItems": 10**9}},
    "big numbers": {"json_schema": {"type": "integer", "minimum": -(10**300), "maximum": 10**300}},
    "many states": {
        "json_schema": {
            "allOf": [
                {"type": "string", "pattern": f"^(a|b)*a(a|b){{{i}}}$"} for i in range(10, 40)
            ]
        }
    },
    "a state a letter": {"regex": "(a|b)*a(a|b){25}"},
    "repeated": {"regex": "(((a{1000}){1000}){1000}){1000}"},
    "repeated at will": {"regex": "(a{1,100000}){1,100000}"},
    "one letter or two": {"regex": "(a|aa)*b"},
    "many ways to match": {"regex": "(x+x+)+y"},
    "brackets": {"regex": "(" * 30_000 + "a" + ")" * 30_000},
    "words": {"regex": r"(\w*\d\w*){30}"},
    "letters": {"regex": r"(\p{L}{1,1000})+"},
    "grammar of itself": {"grammar": "start: start"},
    "ambiguous": {"grammar": 'start: a\na: a a | "x"'},
    "brackets in a grammar": {"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "brackets in GBNF": {"grammar": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "a long grammar": {"grammar": "start: " + " | ".join(f'"w{i}"' for i in range(4500))},
    "a thousand choices": {"choice": [f"choice {i} {'y' * 40}" for i in range(1000)]},
}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Any) -> GrammarCompiler:
    folder: Path = make_tokenizer()
    return GrammarCompiler(Tokenizer.from_folder(folder), 320, [IM_END])


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture(scope="module")
def grammars(compiler: GrammarCompiler) -> Grammars:
    return Grammars(compiler, max_seconds=2)


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_or_answered(name: str, grammars: Grammars) -> None:
    """A test that hangs is ended by its timeout; one that ends the process is seen by all."""
    before = peak_bytes()
    try:
        structure = SamplingParams().override(HOSTILE[name]).structure
    except RowError as refused:
        error: RowError | None = refused
    else:
        assert structure is not None
        error = grammars.refused([structure]).get(structure)
    if error is not None:
        assert error.code in ("invalid_param", "invalid_grammar")
        assert error.param in HOSTILE[name]
        assert peak_bytes() - before < MAX_MORE_BYTES
        return
    assert structure is not None
    matcher = GrammarMatcher(grammars.compiled(structure).result())
    random = np.random.default_rng(0)
    for _ in range(NUM_TOKENS):
        if matcher.is_over:
            break
        bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")
        matcher.take(int(random.choice(np.flatnonzero(bits))))
        if not matcher.is_over:
            matcher.compute_mask()
    assert peak_bytes() - before < MAX_MORE_BYTES


def test_few_grammars_are_kept_and_the_same_one_is_compiled_once(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_ = compiler.compile

    def counted(structure: Structure) -> Any:
        compiled.append(structure.text)
        return compile_(structure)

    monkeypatch.setattr(compiler, "compile", counted)
    grammars = Grammars(compiler, max_kept=3)
    some = [Structure("regex", letter) for letter in "abcd"]
    assert grammars.refused([*some, *some]) == {}
    assert sorted(compiled) == ["a", "b", "c", "d"]
    assert grammars.compiled(some[3]).result() is grammars.compiled(some[3]).result()
    assert len(compiled) == 4
    grammars.compiled(some[0]).result()
    assert sorted(compiled) == ["a", "a", "b", "c", "d"]
    bad = Structure("regex", "(")
    assert list(grammars.refused([some[0], bad])) == [bad]


def test_words_past_the_tokenizer_s_are_never_allowed(compiler: GrammarCompiler) -> None:
    """The model has 320 ids, the tokenizer 261; an end of text only where the answer may end."""
    matcher = GrammarMatcher(compiler.compile(Structure("regex", "(?s:.*)")))
    bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")
    assert len(matcher.mask) == 10
    assert set(np.flatnonzero(bits).tolist()) <= {*range(256), IM_END}
    assert bits[IM_END] == 1


def test_a_token_that_must_follow_is_the_only_one_allowed(compiler: GrammarCompiler) -> None:
    matcher = GrammarMatcher(compiler.compile(Structure("choice", '["abc", "abd"]')))
    for _ in "ab":
        forced = matcher.forced_token()
        assert forced is not None
        bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == [forced]
        matcher.take(forced)
    assert matcher.forced_token() is None
    matcher.compute_mask()
    two = np.flatnonzero(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little"))
    assert len(two) == 2
    matcher.take(int(two[0]))
    assert matcher.is_complete
    assert matcher.forced_token() is None
