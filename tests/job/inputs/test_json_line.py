"""One line of JSON, read strictly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.job.inputs.json_line import MAX_DEPTH, parse_object
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
    assert parse_object(json.dumps(value, ensure_ascii=escaped)) == value


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
        ('{"a": NaN}', "invalid_json_line", None),
        ('{"a": [Infinity]}', "invalid_json_line", None),
        ('{"a": -Infinity}', "invalid_json_line", None),
        ('{"a": 1e999}', "invalid_json_line", None),
        ('{"temperature": NaN}', "invalid_param", "temperature"),
        ('{"temperature": 1e999}', "invalid_param", "temperature"),
        ('{"sampling_params": {"top_p": Infinity}}', "invalid_param", "top_p"),
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
        parse_object(text)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_torn_line_names_its_column() -> None:
    with pytest.raises(RowError, match="at column 12"):
        parse_object('{"prompt": ')


def test_brackets_inside_strings_are_not_depth() -> None:
    prompt = "[" * 1000 + '\\"{' * 100
    assert parse_object(json.dumps({"prompt": prompt})) == {"prompt": prompt}


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert parse_object(r'{"a": "\ud83d\ude00"}') == {"a": "\U0001f600"}


def test_the_message_never_repeats_a_long_key() -> None:
    key = "secret" * 10_000
    with pytest.raises(RowError) as caught:
        parse_object(json.dumps({"x": 1})[:-1] + f', "{key}": 1, "{key}": 2}}')
    assert len(caught.value.message) < 200
    assert len(caught.value.param or "") <= 64


def test_a_duplicate_key_with_half_a_surrogate_can_be_written_out() -> None:
    with pytest.raises(RowError) as caught:
        parse_object(r'{"\ud800": 1, "\ud800": 2}')
    json.dumps(caught.value.to_dict(), ensure_ascii=False).encode("utf-8")
