"""SamplingParams: what is accepted, what is refused, and in which words."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.rules import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_TOKEN_IDS,
)
from pagedrun.paged.values.sampling_params import (
    CHECKED,
    FIELD_NAMES,
    MAX_N,
    EarlyStopping,
    SamplingParams,
    sampling_keys,
)
from pagedrun.paged.values.structure import (
    MAX_CHOICES,
    MAX_GRAMMAR_CHARS,
    MAX_SCHEMA_DEPTH,
    STRUCTURES,
    Structure,
    is_json_schema,
)

INT32 = 2**31 - 1


def test_defaults_are_what_their_own_rules_accept() -> None:
    """They are not looked at again in each of a file's rows."""
    assert {name for name, *_ in CHECKED} <= FIELD_NAMES
    for name, rule, default in CHECKED:
        is_absent = default is None and name in ("logprobs", "prompt_logprobs")
        assert is_absent or rule.accepts(default), name


INTEGERS_WITHOUT_FLOAT = [10**400, -(10**400)]
ACCEPTED: dict[str, list[Any]] = {
    "n": [1, MAX_N],
    "temperature": [0.0, 1e-9, 1.0, 100.0],
    "top_p": [1e-9, 0.5, 1.0],
    "top_k": [-1, 0, 1, INT32],
    "min_p": [0.0, 0.5, 1.0],
    "seed": [0, 2**63 - 1],
    "max_tokens": [1, INT32],
    "min_tokens": [0, 256],
    "stop": [(), ("a",), ("x" * MAX_STOP_LENGTH,), ("é", "\U0001f600"), ("s",) * MAX_STOP_STRINGS],
    "stop_token_ids": [(), (0,), (1, 2, 3)],
    "ignore_eos": [True, False],
    "repetition_penalty": [0.01, 0.8, 1.0, 1.3, 100.0],
    "presence_penalty": [-2.0, 0.0, 2.0],
    "frequency_penalty": [-2.0, 0.5, 2.0],
    "logit_bias": [(), ((0, -100.0),), ((1, 2.5), (7, 100.0))],
    "allowed_token_ids": [None, (0,), (5, 5, 1)],
    "bad_words": [(), ("a",), (" a", "b c"), ("x" * MAX_BAD_WORD_LENGTH,), ("w",) * MAX_BAD_WORDS],
    "logprobs": [0, 20],
    "prompt_logprobs": [0, 20],
    "json_schema": [None, '{"type":"object"}', '{"é":1}'],
    "json_object": [True, False],
    "regex": [None, "a+", "é", "x" * MAX_GRAMMAR_CHARS],
    "choice": [(), ("yes",), ("a",) * MAX_CHOICES],
    "grammar": [None, 'start: "a"'],
    "skip_special_tokens": [True, False],
    "include_stop_str_in_output": [True, False],
    "stop_on_repetition": [0, 2, 1024],
    "reasoning_tags": ["auto", "none", "<a>,</a>", "[THINK],[/THINK]"],
    "thinking_budget": [0, 1, INT32],
    "vote": [r"(\d+)", "yes|no", "(?i)(?P<x>a)", "json:a", "json:a.0.b", "(a*)*b"],
    "beam_width": [1, 2, 16],
    "length_penalty": [-5.0, 0.0, 5.0],
    "early_stopping": [*EarlyStopping],
}
REFUSED: dict[str, list[Any]] = {
    "n": [0, -1, MAX_N + 1, 1.0, True, "1", None],
    "temperature": [
        *(-0.1, 100.1, -1, 101, math.nan, math.inf, -math.inf),
        *(True, "1", None, [1.0]),
        *INTEGERS_WITHOUT_FLOAT,
    ],
    "top_p": [0.0, -0.5, 1.0001, math.nan, math.inf, False, "1", 0, 2, *INTEGERS_WITHOUT_FLOAT],
    "top_k": [-2, INT32 + 1, 5.0, True, "5"],
    "min_p": [-0.1, 1.1, math.nan, True],
    "seed": [-1, 2**63, 1.5, True, "0"],
    "logprobs": [-1, 21, 1.0, True, "1"],
    "prompt_logprobs": [-1, 21, 1.0, False, "1"],
    "beam_width": [0, 17, 2.0, True, "2", None],
    "length_penalty": [-5.1, 5.1, math.nan, True, "1", None, *INTEGERS_WITHOUT_FLOAT],
    "early_stopping": [0, 1, "always", "True", None, ["never"]],
    "max_tokens": [0, -1, INT32 + 1, 16.0, True, "16"],
    "min_tokens": [-1, INT32 + 1, 0.0, False],
    "stop": [
        "",
        ("",),
        ("x" * (MAX_STOP_LENGTH + 1),),
        ("s",) * (MAX_STOP_STRINGS + 1),
        (1,),
        (None,),
        (("a",),),
        {"a": 1},
        7,
        b"a",
        ("\ud800",),  # half a surrogate pair: cannot be written as UTF-8
    ],
    "stop_token_ids": [(-1,), (True,), (1.0,), ("1",), 5, "12", {1: 2}],
    "ignore_eos": [0, 1, "true", None],
    "repetition_penalty": [0.0, -1.0, 100.5, math.nan, math.inf, True, "1", None, 0],
    "presence_penalty": [-2.1, 2.1, 3, math.nan, False, "1", *INTEGERS_WITHOUT_FLOAT],
    "frequency_penalty": [-2.1, 2.1, -3, math.nan, False, "1", *INTEGERS_WITHOUT_FLOAT],
    "logit_bias": [
        *({1: 101}, {1: -100.5}, {1: math.nan}, {1: "2"}, {1: True}, {1: 10**400}),
        *({-1: 2}, {"a": 2}, {"01": 2}, {" 1": 2}, {"-1": 2}, {1.0: 2}, {True: 2}, {None: 2}),
        *({"1": 1, 1: 2}, {"9" * 5000: 1}, {"\u0661": 1}, {"": 1}),
        *([], [[1, 2.0]], ((1, 2),), ((2, 1.0), (1, 1.0)), ((1, 1.0), (1, 1.0)), (1, 2), "1", 5),
        tuple((token_id, 1.0) for token_id in range(MAX_TOKEN_IDS + 1)),
    ],
    "allowed_token_ids": [(), (-1,), (True,), (1.0,), ("1",), 5, "12", (1,) * (MAX_TOKEN_IDS + 1)],
    "bad_words": [
        *("", " ", ("a", ""), ("\t \n",), (1,), (None,), (("a",),), {"a": 1}, 7, b"a"),
        *(("\ud800",), ("x" * (MAX_BAD_WORD_LENGTH + 1),), ("w",) * (MAX_BAD_WORDS + 1)),
    ],
    "json_schema": [
        *("", "{", "[]", "7", "true", '{"a":NaN}', "\ud800", 7, True, (), b"{}"),
        {"a": math.nan},
        {"a": {1, 2}},
        '{"a":' * (MAX_SCHEMA_DEPTH + 1) + "1" + "}" * (MAX_SCHEMA_DEPTH + 1),
        '{"a":' * 100_000,
        {"description": "x" * MAX_GRAMMAR_CHARS},
    ],
    "json_object": [0, 1, "true", None, {}],
    "regex": ["", 1, ("a",), b"a", "\ud800", "x" * (MAX_GRAMMAR_CHARS + 1)],
    "choice": [
        *("yes", ("",), (1,), (None,), {"a": 1}, None, ("\ud800",)),
        ("a",) * (MAX_CHOICES + 1),
        ("x" * MAX_GRAMMAR_CHARS, "y"),
    ],
    "grammar": ["", 1, {}, "\ud800", "x" * (MAX_GRAMMAR_CHARS + 1)],
    "skip_special_tokens": [0, 1, "true", None],
    "include_stop_str_in_output": [0, 1, "true", None],
    "stop_on_repetition": [1, -1, 1025, 2.0, True, "2", None],
    "reasoning_tags": [
        *("", "on", "<a>", "<a>,", ",</a>", "<a>,<a>", "a,b,c", "<a>, </a>", None, 1),
        *("x" * 65 + ",y", "\ud800,y", ["<a>", "</a>"]),
    ],
    "thinking_budget": [-1, 1.0, True, "1", 2**31],
    "vote": ["", "(a", "a)(b", "(?=a)b", r"(a)\1", "a{5000}", "json:", "json:a..b", "x" * 1025, 1],
}


def cases(table: Mapping[str, list[Any]]) -> list[Any]:
    return [pytest.param(name, v, id=f"{name}-{v!r:.40}") for name in table for v in table[name]]


def test_every_field_has_cases() -> None:
    assert set(ACCEPTED) == set(REFUSED) == FIELD_NAMES


@pytest.mark.parametrize(("name", "value"), cases(ACCEPTED))
def test_accepted(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value
    assert getattr(SamplingParams().override({name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), cases(REFUSED))
def test_refused(name: str, value: Any) -> None:
    """In Python as an argument, of a row as its error, with the same words."""
    with pytest.raises(UsageError) as refused:
        SamplingParams(**{name: value})
    assert refused.value.field == name
    assert str(refused.value).startswith(f"{name} must be ")
    if value is None or (value is False and name in ("logprobs", "prompt_logprobs")):
        return  # a row that says so does not set it
    with pytest.raises(RowError) as caught:
        SamplingParams().override({name: value})
    assert (caught.value.code, caught.value.param) == ("invalid_param", name)
    assert caught.value.message == str(refused.value)


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("temperature", 0, 0.0),  # nano-vllm#249 refused it
        ("temperature", 1, 1.0),
        ("top_p", 1, 1.0),
        ("min_p", 0, 0.0),
        ("stop", "END", ("END",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", [], ()),
        ("stop_token_ids", [1, 2], (1, 2)),
        ("repetition_penalty", 1, 1.0),
        ("presence_penalty", -2, -2.0),
        ("logit_bias", {}, ()),
        ("logit_bias", {"7": -100, 3: 1.5}, ((3, 1.5), (7, -100.0))),
        ("logit_bias", {"7": None, "8": 1}, ((8, 1.0),)),  # a table has a column for each id
        ("allowed_token_ids", [3, 1], (3, 1)),
        ("bad_words", "word", ("word",)),
        ("bad_words", [], ()),
    ],
)
def test_what_users_write_becomes_the_fields_own_type(name: str, given: Any, meant: Any) -> None:
    """In Python as in JSON: `SamplingParams(temperature=0)` is what everybody types."""
    for params in (SamplingParams(**{name: given}), SamplingParams().override({name: given})):
        value = getattr(params, name)
        assert value == meant
        assert type(value) is type(meant)
        hash(params)


def test_a_bound_is_told() -> None:
    with pytest.raises(UsageError, match=r"^top_p must be a number above 0 and at most 1$"):
        SamplingParams(top_p=0.0)
    with pytest.raises(UsageError, match=r"^n must be an integer from 1 to 1024$"):
        SamplingParams(n=0)


def test_more_tokens_at_least_than_at_most() -> None:
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    with pytest.raises(UsageError, match="min_tokens 6 exceeds max_tokens 5") as caught:
        SamplingParams(min_tokens=6, max_tokens=5)
    assert caught.value.field == "min_tokens"


@pytest.mark.parametrize("alias", ["max_tokens", "max_new_tokens", "max_completion_tokens"])
def test_max_tokens_by_its_other_names(alias: str) -> None:
    assert SamplingParams().override({alias: 9}).max_tokens == 9
    with pytest.raises(RowError) as caught:
        SamplingParams().override({alias: 0})
    assert caught.value.param == "max_tokens"
    assert alias in sampling_keys()


def test_override_keeps_what_is_not_given() -> None:
    params = SamplingParams(temperature=0.7, stop=("x",), seed=3)
    assert params.override({"seed": None, "prompt": "hello", "id": 5}) is params
    changed = params.override({"temperature": 0, "unknown": [object()]})
    assert changed == SamplingParams(temperature=0.0, stop=("x",), seed=3)
    assert params.temperature == 0.7


def test_override_checks_the_fields_together() -> None:
    with pytest.raises(RowError, match="exceeds"):
        SamplingParams(min_tokens=20).override({"max_tokens": 10})
    both = SamplingParams(min_tokens=20).override({"max_tokens": 10, "min_tokens": 2})
    assert (both.min_tokens, both.max_tokens) == (2, 10)


def test_greedy_is_temperature_zero() -> None:
    assert SamplingParams().is_greedy
    assert not SamplingParams(temperature=0.5).is_greedy


def test_the_keys_of_a_row_are_the_fields_and_their_aliases() -> None:
    assert sampling_keys() == FIELD_NAMES | {"max_new_tokens", "max_completion_tokens"}


def test_nothing_is_generated_only_where_the_prompt_is_scored() -> None:
    assert SamplingParams(max_tokens=0, prompt_logprobs=0).max_num_drawn == 1
    with pytest.raises(UsageError, match="or 0 with prompt_logprobs") as caught:
        SamplingParams(max_tokens=0, logprobs=0)
    assert caught.value.field == "max_tokens"


SOME_STRUCTURE: dict[str, Any] = {
    "json_schema": {"type": "object"},
    "json_object": True,
    "regex": "a+",
    "choice": ["a", "b"],
    "grammar": 'start: "a"',
}


@pytest.mark.parametrize("first", STRUCTURES)
@pytest.mark.parametrize("second", STRUCTURES)
def test_structures_exclude_each_other(first: str, second: str) -> None:
    given = {name: SOME_STRUCTURE[name] for name in (first, second)}
    if first == second:
        assert SamplingParams(**given).structure is not None
        return
    with pytest.raises(UsageError, match="exclude each other") as refused:
        SamplingParams(**given)
    assert refused.value.field in given


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_row_s_structure_takes_the_place_of_another(name: str) -> None:
    for default in STRUCTURES:
        defaults = SamplingParams(**{default: SOME_STRUCTURE[default]})
        asked = defaults.override({name: SOME_STRUCTURE[name]}).structure
        assert asked is not None
        assert asked.field == name
        assert defaults.override({"temperature": 1.0}).structure == defaults.structure
        assert defaults.override({name: None}).structure == defaults.structure


def test_a_schema_is_one_however_it_is_written() -> None:
    text = ' {"type": "object",\n "properties": {"é": {"type": "string"}}} '
    schema = {"type": "object", "properties": {"é": {"type": "string"}}}
    as_object: Any = schema
    made = [SamplingParams(json_schema=text), SamplingParams(json_schema=as_object)]
    assert made[0] == made[1]
    assert made[0].structure == Structure(
        "json_schema", '{"type":"object","properties":{"é":{"type":"string"}}}'
    )
    assert SamplingParams().structure is None
    assert SamplingParams(choice=("a", 'b"')).structure == Structure("choice", '["a", "b\\""]')


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"n": 5}, "n"),
        ({"temperature": 0.5}, "temperature"),
        ({"stop": ["x"]}, "stop"),
        ({"logprobs": 0}, "logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ],
)
def test_what_beams_are_not_combined_with_is_named(params: Mapping[str, Any], param: str) -> None:
    assert SamplingParams(**params).override({"n": 4}).n == 4
    with pytest.raises(UsageError) as refused:
        SamplingParams(beam_width=4, **params)
    assert refused.value.field == param
    assert "beam_width" in str(refused.value)


@pytest.mark.parametrize("given", [True, "true", EarlyStopping.TRUE])
def test_early_stopping_is_a_boolean_or_a_word(given: Any) -> None:
    params = SamplingParams().override({"early_stopping": given})
    assert params.early_stopping is EarlyStopping.TRUE


@pytest.mark.parametrize(("begin", "end"), [('{"a":', "}"), ("[", "]")], ids=["objects", "lists"])
def test_a_schema_is_refused_by_its_depth_in_objects_and_in_lists(begin: str, end: str) -> None:
    depth = 62  # below the outermost object, which has a level for itself and one for its values
    assert is_json_schema('{"enum":' + begin * depth + "1" + end * depth + "}")
    deep = depth + 2
    assert not is_json_schema('{"enum":' + begin * deep + "1" + end * deep + "}")
