"""JSON arrays: cut into elements as they stream by, whatever they hold."""

import gzip
import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.job.inputs.array_source import ArrayElements
from pagedrun.paged.job.inputs.byte_streams import CountedStream
from pagedrun.paged.job.inputs.reader import Reading, open_rows
from pagedrun.paged.job.inputs.row import RECORD, Row
from pagedrun.paged.values.errors import UsageError


class Drip:
    """Gives `size` bytes at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = data
        self._size = size

    def read(self, limit: int) -> bytes:
        piece, self._data = self._data[: self._size], self._data[self._size :]
        return piece


def elements(data: bytes, size: int = 1 << 16, most: int = 1000) -> list[bytes | None]:
    stream = CountedStream(Drip(data, size))  # type: ignore[arg-type]
    found = list(ArrayElements(stream, "in.json", most))
    for each in found:
        if each.data is not None:
            assert data[each.byte_offset :].startswith(each.data)
    return [each.data for each in found]


def read(path: Path, data: bytes, max_line_bytes: int = 1000) -> list[Row]:
    path.write_bytes(data)
    with open_rows(str(path), Reading(max_line_bytes)) as source:
        rows = list(source)
        assert source.digest(whole=True).sha256 == hashlib.sha256(data).hexdigest()
    return rows


def codes(rows: list[Row]) -> list[str | None]:
    return [row.error.code if row.error else None for row in rows]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.lists(JSON, max_size=6),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
    st.integers(1, 9),
    st.sampled_from([b"", b"\xef\xbb\xbf", b" \r\n"]),
)
def test_any_array_is_cut_where_json_says(
    values: list[Any], indent: int | None, ascii_only: bool, size: int, before: bytes
) -> None:
    """However it is laid out, and wherever the pieces that arrive end."""
    data = before + json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode() + b"\n"
    found = elements(data, size)
    assert [json.loads(each) for each in found if each is not None] == values
    assert len(found) == len(values)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_brackets_and_escapes_in_strings_are_text(size: int) -> None:
    texts = ['"[{,]}\\', "\\\\", '\\"', ",", "]"]
    found = elements(json.dumps([{"prompt": text} for text in texts]).encode(), size)
    assert [json.loads(each or b"")["prompt"] for each in found] == texts


def test_rows_know_their_record(tmp_path: Path) -> None:
    data = b'[ {"id": "a", "prompt": "x"},\n{"prompt": "y"} ]\n\n'
    rows = read(tmp_path / "in.json", data)
    assert [(row.index, row.line, row.unit, row.id) for row in rows] == [
        (0, 1, RECORD, "a"),
        (1, 2, RECORD, "row-1"),
    ]
    assert rows[1].byte_offset == data.index(b'{"prompt": "y"')
    assert rows[1].digest == hashlib.sha256(b'{"prompt": "y"}').digest()


def test_a_bad_element_fails_alone(tmp_path: Path) -> None:
    bad = [
        b"1",
        b'"x"',
        b"null",
        b'{"a": nan}',
        b'{"a": 1, "a": 2}',
        b"{]",
        b'{"a": tru}',
        b"[1]",
    ]
    bad += [b'{"a": "\xff"}', rb'{"a": "\ud800"}', b"[" * 900 + b"]" * 900]
    rows = read(tmp_path / "in.json", b'[{"b": 1},' + b",".join(bad) + b',{"b": 2}]', 5000)
    assert len(rows) == len(bad) + 2
    assert codes(rows)[0] is codes(rows)[-1] is None
    assert all(codes(rows)[1:-1])
    assert {row.error.line for row in rows if row.error} == set(range(2, len(bad) + 2))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty input"),
        (b" \n", "empty input"),
        (b"[]", "empty input"),
        (b"[ \n]\n", "empty input"),
        (b'{"prompt": "a"}', r"let its name end in \.jsonl"),
        (b'[{"a": 1},{"b": 2', "not closed, record 2"),
        (b'[{"a": 1}, {"b": "]', "not closed, record 2"),
        (b'[{"a": 1}', "not closed"),
        (b"[", "not closed, record 1"),
        (b'[{"a": 1},,{"b": 1}]', "record 2 is empty"),
        (b'[{"a": 1},]', "record 2 is empty"),
        (b"[,]", "record 1 is empty"),
        (b'["a"]["b"]', "text after the end of the array, after record 1"),
        (b'["a"]' + b" " * 70_000 + b"x", "text after the end of the array"),
        ('[{"a": 1}]'.encode("utf-16-le"), "UTF-16 text; pass .*encoding.* utf-16-le"),
        (b"\x1f\x8b\x08", "compressed with gzip"),
    ],
)
def test_what_is_no_array_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(tmp_path / "in.json", data)
    assert "in.json" in str(caught.value)


@pytest.mark.parametrize("extra", [0, 1, 70_000, 300_000])
def test_an_element_at_the_limit_is_read_and_one_beyond_is_not(tmp_path: Path, extra: int) -> None:
    long = b'{"a": "' + b"x" * (991 + extra) + b'"}'
    rows = read(tmp_path / "in.json", b"[" + long + b' , {"a": 1}]')
    assert codes(rows) == [None if extra == 0 else "line_too_long", None]


def test_a_huge_element_and_much_white_space_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    with path.open("wb") as file:
        file.write(b"[")
        for piece in (b" " * 2**20, b'"' + b"y" * 2**20 + b'"'):
            file.writelines(piece for _ in range(30))
        file.write(b', {"a": 1}]')
    tracemalloc.start()
    with open_rows(str(path), Reading(2**20)) as source:
        rows = list(source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert codes(rows) == ["line_too_long", None]
    assert peak < 8 * 2**20


def test_deep_brackets_are_counted_without_recursion(tmp_path: Path) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    rows = read(tmp_path / "in.json", b"[" + deep + b', {"a": 1}]', 10**6)
    assert codes(rows) == ["invalid_json_line", None]


def test_a_packed_array(tmp_path: Path) -> None:
    rows = read(tmp_path / "in.json.gz", gzip.compress(b'[{"a": 1}, {"a": 2}]'))
    assert [row.columns for row in rows] == [{"a": 1}, {"a": 2}]
