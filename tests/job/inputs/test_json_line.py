"""One line of JSON, read strictly."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.job.inputs.json_line import MAX_DEPTH, parse_record, parse_value
from pagedrun.paged.values.errors import RowError

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON_VALUES), st.booleans())
def test_every_json_object_is_read_as_python_reads_it(value: object, escaped: bool) -> None:
    assert parse_record(json.dumps(value, ensure_ascii=escaped)).columns == value


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ('{"prompt": "a', "invalid_json_line", None),
        ('{"prompt": "a"} x', "invalid_json_line", None),
        ("[1]", "invalid_json_line", None),
        ('"text"', "invalid_json_line", None),
        ("null", "invalid_json_line", None),
        ("true", "invalid_json_line", None),
        ("12", "invalid_json_line", None),
        ("[" * 100_000, "invalid_json_line", None),
        ('{"a":' * 100_000, "invalid_json_line", None),
        ('{"a":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}", "invalid_json_line", None),
        ('{"a": ' + "9" * 5000 + "}", "invalid_json_line", None),
        ('{"prompt": "a", "prompt": "b"}', "duplicate_key", "prompt"),
        ('{"a": {"k": 1, "k": 1}}', "duplicate_key", "k"),
        (r'{"prompt": "\ud800"}', "invalid_unicode", None),
        (r'{"\udfff": 1}', "invalid_unicode", None),
        (r'{"a": ["\udc00\ud800"]}', "invalid_unicode", None),
        ('{"a": "\x1b"}', "invalid_json_line", None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_bad_line_is_a_row_error(text: str, code: str, param: str | None) -> None:
    with pytest.raises(RowError) as caught:
        parse_record(text)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_torn_line_names_its_column() -> None:
    with pytest.raises(RowError, match="at column 12"):
        parse_record('{"prompt": ')


def test_brackets_inside_strings_are_not_depth() -> None:
    prompt = "[" * 1000 + '\\"{' * 100
    assert parse_record(json.dumps({"prompt": prompt})).columns == {"prompt": prompt}


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert parse_record(r'{"a": "\ud83d\ude00"}').columns == {"a": "\U0001f600"}


def test_the_message_never_repeats_a_long_key() -> None:
    key = "secret" * 10_000
    with pytest.raises(RowError) as caught:
        parse_record(json.dumps({"x": 1})[:-1] + f', "{key}": 1, "{key}": 2}}')
    assert len(caught.value.message) < 200
    assert len(caught.value.param or "") <= 64


def test_a_duplicate_key_with_half_a_surrogate_can_be_written_out() -> None:
    with pytest.raises(RowError) as caught:
        parse_record(r'{"\ud800": 1, "\ud800": 2}')
    json.dumps(caught.value.to_dict(), ensure_ascii=False).encode("utf-8")


def test_numbers_that_json_lacks_are_texts_of_outputs() -> None:
    given = {"a": math.nan, "b": [1.5, {"c": math.inf}, -math.inf], "d": "NaN", "e": {"f": 1}}
    text = json.dumps({"prompt": "p", **given})[:-1] + ', "g": [-1e999]}'
    found = parse_record(text)
    as_texts: dict[str, object] = {
        "prompt": "p",
        "b": [1.5, {"c": "Infinity"}, "-Infinity"],
        "d": "NaN",
    }
    as_texts |= {"e": {"f": 1}, "g": ["-1e999"]}
    assert found.written == {**as_texts, "a": "NaN"}
    assert found.columns == {**as_texts, "a": None}
    assert {*found.unfit} == {"a", "b", "g"}
    assert type(found.columns["g"][0]) is str  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ('{"a": NaN}', "invalid_json_line", "a"),
        ('{"a": {"b": [Infinity]}}', "invalid_json_line", "a"),
        ('{"temperature": NaN}', "invalid_param", "temperature"),
        ('{"temperature": 1e999}', "invalid_param", "temperature"),
        ('{"sampling_params": {"top_p": -Infinity}}', "invalid_param", "top_p"),
    ],
)
def test_a_column_with_such_a_number_is_unfit(text: str, code: str, param: str) -> None:
    (error,) = parse_record(text).unfit.values()
    assert (error.code, error.param) == (code, param)
    with pytest.raises(RowError):
        parse_value(text)
