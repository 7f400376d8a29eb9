"""Rows of a JSONL input, against what real and hostile files hold."""

import hashlib
import io
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.job.input_checks import UniqueIds
from pagedrun.paged.job.inputs.line_source import LineSource
from pagedrun.paged.job.inputs.reader import open_rows
from pagedrun.paged.job.inputs.row import Row
from pagedrun.paged.values.errors import UsageError


def read(data: bytes, max_line_bytes: int = 1000) -> list[Row]:
    return list(LineSource(io.BytesIO(data), "in.jsonl", max_line_bytes))


def codes(rows: list[Row]) -> list[str | None]:
    return [row.error.code if row.error else None for row in rows]


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n \t\n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_an_input_without_rows_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="empty input"):
        read(data)


def test_the_last_line_needs_no_newline() -> None:
    assert [row.columns for row in read(b'{"a":1}\n{"a":2}')] == [{"a": 1}, {"a": 2}]


def test_blank_lines_are_skipped_but_counted() -> None:
    rows = read(b'\n{"a":1}\n\n \t \r\n{"a":2}\n\n')
    assert [(row.index, row.line, row.id) for row in rows] == [(0, 2, "row-0"), (1, 5, "row-1")]
    assert [row.byte_offset for row in rows] == [1, 15]


@pytest.mark.parametrize(
    "inside", ["\\r", "\u2028", "\u2029", "\u0085", "\\u0085", "\\n", "\x7f", "\u00a0"]
)
def test_only_the_newline_byte_ends_a_line(inside: str) -> None:
    data = '{"prompt": "a' + inside + 'b"}\r\n{"prompt": "c"}\r\n'
    assert codes(read(data.encode())) == [None, None]


def test_a_lone_carriage_return_does_not_split() -> None:
    rows = read(b'{"a":\r1}\r\n{"a":2}\r\r\n')
    assert [row.columns for row in rows] == [{"a": 1}, {"a": 2}]


def test_one_byte_order_mark_is_dropped_and_offsets_stay_true() -> None:
    data = b'\xef\xbb\xbf{"a":1}\n{"a":2}\n'
    rows = read(data)
    assert [data[row.byte_offset or 0 :][:7] for row in rows] == [
        b'{"a":1}',
        b'{"a":2}',
    ]
    assert codes(read(b"\xef\xbb\xbf" + data)) == ["invalid_json_line", None]


@pytest.mark.parametrize("bad", [b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
def test_bytes_that_are_not_utf8_fail_their_row_alone(bad: bytes) -> None:
    rows = read(b'{"a":1}\n{"prompt":"' + bad + b'"}\n{"a":3}\n')
    assert codes(rows) == [None, "invalid_utf8", None]
    assert rows[1].error is not None
    assert "byte 19" in rows[1].error.message
    assert rows[1].error.line == 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_refused_with_the_way_out(encoding: str) -> None:
    with pytest.raises(UsageError, match=r"pass .*encoding.* utf-16-[lb]e"):
        read('{"prompt": "hello"}\n{"prompt": "b"}\n'.encode(encoding))


@pytest.mark.parametrize("magic", [b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"PAR1", b"PK\x03\x04"])
def test_other_formats_are_refused(magic: bytes) -> None:
    with pytest.raises(UsageError, match=r"in\.jsonl is "):
        read(magic + b"\x00" * 20)


def test_a_line_at_the_limit_is_read_and_one_beyond_is_not() -> None:
    at_limit = b'{"a":"' + b"x" * 92 + b'"}'
    assert len(at_limit) == 100
    for end in (b"", b"\n", b"\r\n"):
        assert codes(read(at_limit + end, 100)) == [None]
        assert codes(read(b"\xef\xbb\xbf" + at_limit + end, 100)) == [None]
        assert codes(read(b" " + at_limit + end, 100)) == ["line_too_long"]


@pytest.mark.parametrize("extra", [1, 2, 3, 4, 5, 6, 65_536, 65_537, 300_000])
def test_the_line_after_a_long_one_is_whole(extra: int) -> None:
    long = b'{"a":"' + b"x" * (92 + extra) + b'"}\n'
    rows = read(long + b'{"a":2}\n' + long + b'{"a":4}', 100)
    assert codes(rows) == ["line_too_long", None, "line_too_long", None]
    assert [row.line for row in rows] == [1, 2, 3, 4]
    assert rows[3].byte_offset == 2 * len(long) + 8


class _Endless(io.RawIOBase):
    """A line of `num_bytes` that is never in memory as a whole, then a short one."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes
        self._tail = io.BytesIO(b'\n{"a":1}\n')

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._left:
            return self._tail.readinto(buffer)
        size = min(len(buffer), self._left)
        buffer[:size] = b"x" * size
        self._left -= size
        return size


def test_a_huge_line_is_skipped_in_constant_memory() -> None:
    stream = io.BufferedReader(_Endless(100 * 2**20))
    tracemalloc.start()
    rows = list(LineSource(stream, "in", max_line_bytes=2**20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert codes(rows) == ["line_too_long", None]
    assert peak < 8 * 2**20


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ('"id": "a/../b"', "a/../b"),
        ('"id": 7', 7),
        ('"custom_id": "c"', "c"),
        ('"id": "a", "custom_id": "c"', "a"),
        ('"id": null, "custom_id": "c"', "c"),
        ('"x": 1', "row-0"),
        (r'"id": "\u001b[2J\n[/red]\u202e"', "\x1b[2J\n[/red]\u202e"),
        ('"id": ""', ""),
    ],
)
def test_ids_are_kept_as_given(columns: str, wanted: object) -> None:
    (row,) = read(f"{{{columns}}}".encode())
    assert row.id == wanted
    assert row.error is None


@pytest.mark.parametrize("value", ["true", "1.5", "[1]", '{"a": 1}', '"' + "x" * 1025 + '"'])
def test_an_id_that_cannot_name_a_row_fails_it(value: str) -> None:
    (row,) = read(f'{{"id": {value}, "keep": 1}}'.encode(), 10_000)
    assert row.error is not None
    assert (row.error.code, row.error.param) == ("invalid_id", "id")
    assert row.id == "row-0"
    assert row.columns["keep"] == 1


def test_duplicate_ids_are_refused_with_both_lines() -> None:
    rows = read(b'{"id":"a"}\n\n{"id":"b"}\n{"id":"a"}\n{"id":1}\n{"id":"1"}\n')
    with pytest.raises(UsageError, match=r"'a' on lines 1 and 4; '1' on lines 5 and 6"):
        UniqueIds("in.jsonl").refuse_repeated(rows)


def test_an_id_that_looks_like_a_default_one_is_noticed() -> None:
    rows = read(b'{"id":"row-1"}\n{"a":1}\n')
    with pytest.raises(UsageError, match="'row-1' on lines 1 and 2"):
        UniqueIds("in.jsonl").refuse_repeated(rows)


def test_many_duplicates_make_a_short_message() -> None:
    rows = read(b'{"id":"' + b"x" * 500 + b'"}\n' + b"".join([b'{"id":"a"}\n'] * 100))
    with pytest.raises(UsageError, match="and 89 more") as caught:
        UniqueIds("in.jsonl").refuse_repeated(rows)
    assert len(str(caught.value)) < 1000


def test_digests_tell_lines_apart_and_line_ends_do_not_matter() -> None:
    first, second, third = read(b'{"a":1}\r\n{"a":1}\n{"a":2}')
    assert first.digest == second.digest == hashlib.sha256(b'{"a":1}').digest()
    assert third.digest != first.digest


@given(st.lists(st.binary(max_size=40), max_size=12), st.sampled_from([b"\n", b"\r\n"]))
def test_any_bytes_give_one_row_for_each_line_that_is_not_blank(
    lines: list[bytes], end: bytes
) -> None:
    """Whatever a line holds, the reader neither raises nor loses or invents a row."""
    lines = [b"{}", *[line.replace(b"\n", b"") for line in lines]]
    data = end.join(lines)
    rows = read(data)
    expected = [
        number for number, line in enumerate(data.split(b"\n"), 1) if line.strip(b" \t\r\n")
    ]
    assert [row.line for row in rows] == expected
    assert [row.index for row in rows] == list(range(len(rows)))


def test_the_reader_knows_size_and_digest_of_what_it_read() -> None:
    data = b'\xef\xbb\xbf{"a":1}\r\n\n{"a":2}'
    reader = LineSource(io.BytesIO(data), "in", 1000)
    assert len(list(reader)) == 2
    assert reader.lines.num_bytes == len(data)
    assert reader.lines.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("name", ["x.xlsx", "x", "x.gz", "x.parquet.zst", "x.jsonl.bz2"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b'{"prompt":"a"}\n')
    with (
        pytest.raises(UsageError, match=r"supported inputs are \.jsonl, .*hf:NAME"),
        open_rows(str(path)),
    ):
        pass


def test_an_input_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for name, message in (
        (str(tmp_path / "missing.jsonl"), "No such file"),
        (str(tmp_path), "is a folder"),
        ("a\0b.jsonl", "cannot be read"),
    ):
        with pytest.raises(UsageError, match=message), open_rows(name):
            pass


def test_a_pipe_is_taken_as_jsonl() -> None:
    readable, writable = os.pipe()
    os.write(writable, b'{"prompt":"a"}\n')
    os.close(writable)
    with open_rows(f"/dev/fd/{readable}") as source:
        assert len(list(source)) == 1
        assert not source.drain()
    os.close(readable)
