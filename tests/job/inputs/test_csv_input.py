"""CSV files, as spreadsheets and programs write them, and as nobody should."""

import csv
import gzip
import hashlib
import io
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.job.inputs.byte_streams import CountedStream
from pagedrun.paged.job.inputs.csv_dialect import find_delimiter
from pagedrun.paged.job.inputs.csv_source import CsvSource
from pagedrun.paged.job.inputs.reader import InputFormat, Reading, open_rows
from pagedrun.paged.job.inputs.row import LINE, Row
from pagedrun.paged.values.errors import UsageError


def read(data: bytes, max_record_bytes: int = 1000) -> list[Row]:
    file = io.BufferedReader(io.BytesIO(data))
    return list(CsvSource(CountedStream(file), "in.csv", max_record_bytes))


def codes(rows: list[Row]) -> list[str | None]:
    return [row.error.code if row.error else None for row in rows]


def columns(data: bytes) -> list[dict[str, Any]]:
    return [dict(row.columns) for row in read(data)]


def test_quotes_newlines_blank_lines_and_a_byte_order_mark() -> None:
    data = b'\xef\xbb\xbfid,prompt\r\n\r\na,"one, ""two""\r\n\r\nthree"\r\nb,5" pipe\r\n\r\nc,last'
    rows = read(data)
    assert [row.columns for row in rows] == [
        {"id": "a", "prompt": 'one, "two"\r\n\r\nthree'},
        {"id": "b", "prompt": '5" pipe'},
        {"id": "c", "prompt": "last"},
    ]
    assert [(row.index, row.line, row.unit, row.id) for row in rows] == [
        (0, 3, LINE, "a"),
        (1, 6, LINE, "b"),
        (2, 8, LINE, "c"),
    ]
    assert [row.byte_offset for row in rows] == [
        data.index(b"a,"),
        data.index(b"b,"),
        data.index(b"c,"),
    ]
    assert rows[1].digest == hashlib.sha256(b'b,5" pipe').digest()


@given(
    st.lists(
        st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=2),
        min_size=1,
        max_size=5,
    )
)
def test_what_the_standard_library_writes_is_read_back(cells: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *cells])
    rows = read(text.getvalue().encode(), 10_000)
    assert [[row.columns["a"], row.columns["b"]] for row in rows] == cells


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty input"),
        (b"\n\n", "empty input"),
        (b"a,b\n", "empty input"),
        (b"\xef\xbb\xbf", "empty input"),
        (b"a,b,a\n1,2,3\n", "line 1: the header names the column 'a' twice"),
        (b",,\n1,2,3\n", "line 1: the header names no column"),
        (b'""\n1\n', "line 1: the header names no column"),
        (b",a,a\n0,1,2\n", "line 1: the header names the column 'a' twice"),
        (b"a, a\n1,2\n", "line 1: the header names the column 'a' twice"),
        (b"a\xff,b\n1,2\n", "name of column 1 is not valid UTF-8"),
        (b'"a"x,b\n1,2\n', "the header is not valid CSV"),
        (b",".join(b"c%d" % i for i in range(10_001)) + b"\n1\n", "more than 10000 columns"),
        (b'a,b\n1,2\n3,"4\n5,6\n', "on line 3 and never closed"),
        (b"a,b\n1,2\n3," + b"x" * 300_000 + b"\n", "record on line 3 is longer than"),
        (b'a\n1\n"' + b"x\n" * 300_000, "record on line 3 is longer than"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16 text; pass .*encoding.* utf-16-le"),
        ("a,b\n1,2\n".encode("utf-16-be"), "UTF-16 text; pass .*encoding.* utf-16-be"),
        (b"prompt\nHello, you\nnothing\nno, no, no\n", "line 2: .*one column, 'prompt', but"),
        (b"sep=;\nprompt\na;b\n", "line 3: .* 2 cells: put quotes around .* ';'"),
        (b"PK\x03\x04", "zip archive"),
    ],
)
def test_what_cannot_be_followed_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(data, 200_000)
    assert "in.csv" in str(caught.value)


def test_a_bad_record_fails_alone() -> None:
    rows = read(b'a,b\n1,2\n1\n1,2,3\n"x"y,2\n\xff,2\nold\rmac,2\n3,4\n')
    assert codes(rows) == [None, *["invalid_csv_record"] * 3, "invalid_utf8", codes(rows)[5], None]
    assert codes(rows)[5] == "invalid_csv_record"
    assert [row.error.line for row in rows if row.error] == [3, 4, 5, 6, 7]
    assert "1 cells, but the header names 2 columns" in str(rows[1].error)


def test_cells_of_sampling_columns_are_values_and_empty_ones_absent() -> None:
    head = b"id,prompt,temperature,max_tokens,stop,ignore_eos,note,prompt_token_ids\n"
    first, second = columns(head + b'7,,0.5,16,"[x]",true,,"[1, 2]"\n' + b",hi,,,,,5,\n")
    assert first == {
        "id": "7",
        "prompt": "",
        "temperature": 0.5,
        "max_tokens": 16,
        "stop": "[x]",
        "ignore_eos": True,
        "note": "",
        "prompt_token_ids": [1, 2],
    }
    assert [name for name, value in second.items() if value is None] == [
        "id",
        "temperature",
        "max_tokens",
        "stop",
        "ignore_eos",
        "prompt_token_ids",
    ]
    assert second["note"] == "5"


@pytest.mark.parametrize("cell", ["hot", "NaN", '1, "x": 2', "'1'", "1e999"])
def test_a_sampling_cell_that_is_no_value_fails_its_row(cell: str) -> None:
    quoted = '"' + cell.replace('"', '""') + '"'
    (row,) = read(f"prompt,temperature\nhi,{quoted}\n".encode())
    assert row.error is not None
    assert (row.error.code, row.error.param, row.error.line) == ("invalid_param", "temperature", 2)


def test_a_cell_far_beyond_the_default_limit_of_the_module_is_read() -> None:
    (row,) = read(b"prompt\n" + b"x" * 150_000 + b"\n", 200_000)
    assert row.columns == {"prompt": "x" * 150_000}


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "in.csv.gz"
    path.write_bytes(gzip.compress(b"prompt\na\nb\n"))
    with open_rows(str(path)) as source:
        assert [row.columns["prompt"] for row in source] == ["a", "b"]
        digest = source.digest(whole=True)
    assert digest.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


FRAME = pandas.DataFrame(
    {
        "prompt": ['say "a", b; c', "two\nlines\r\nor three", "a|b\tc", "é"],
        "note": ["x", ", , ,", "", ";;;"],
    }
)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("has_index", [False, True])
def test_a_table_of_pandas_is_read_as_pandas_reads_it(
    delimiter: str, has_index: bool, tmp_path: Path
) -> None:
    """Cells full of the other delimiters, by which the wrong one is found; a lost column."""
    path = tmp_path / "in.csv"
    FRAME.to_csv(path, sep=delimiter, index=has_index)
    with open_rows(str(path)) as source:
        rows = [dict(row.columns) for row in source]
        assert source.facts.columns == ("prompt", "note")
        notes = set(source.facts.notes)
    assert rows == FRAME.to_dict("records")
    assert ("delimiter" in notes, "unnamed" in notes) == (delimiter != ",", has_index)


def test_several_unnamed_columns_are_left_out() -> None:
    """An index of several levels."""
    source = CsvSource(CountedStream(io.BytesIO(b",,a\nx,1,2\ny,1,3\nz,4\n")), "in.csv", 100)
    rows = list(source)
    assert [row.columns for row in rows] == [{"a": "2"}, {"a": "3"}, {}]
    assert codes(rows)[2] == "invalid_csv_record"
    assert "2 columns have no name" in source.facts.notes["unnamed"]


@pytest.mark.parametrize(
    ("sample", "found"),
    [
        (b"", ","),
        (b"prompt\na; b\nc; d\n", ","),
        (b"prompt", ","),
        (b"a|b,c\n1,2\n3,4\n", ","),
        (b"a;b\n1,5;2,5\n1,5;2,5\n", ";"),
        (b'id,"a;b",c\n1,x;y,z\n', ","),
        (b"what|it|is\nno bar here\nnor here\n", ","),
        (b"a\tb\n1\t2\n", "\t"),
        (b"\xef\xbb\xbfa;b\r\n1;2\r\n", ";"),
        (b'a;b\n"x;\ny";2\n3;"cut o', ";"),
        (b"a;b;\xff\n", ";"),
    ],
)
def test_the_delimiter_is_found(sample: bytes, found: str) -> None:
    assert find_delimiter(sample) == found


def test_a_delimiter_that_is_given_is_taken(tmp_path: Path) -> None:
    """`--delimiter ,` on a file that looks like another, and one that is never looked for."""
    path = tmp_path / "in.csv"
    path.write_text("a;b:c\n1;2:3\n")
    for delimiter, names in ((":", ["a;b", "c"]), (",", ["a;b:c"]), (None, ["a", "b:c"])):
        with open_rows(str(path), Reading(delimiter=delimiter)) as source:
            assert [list(row.columns) for row in source] == [names]
    tabs = tmp_path / "in.tsv"
    tabs.write_text("a;b\tc\n1;2\t3\n")
    for delimiter in (None, "tab", "\\t", "\t"):
        with open_rows(str(tabs), Reading(delimiter=delimiter)) as source:
            assert [row.columns for row in source] == [{"a;b": "1;2", "c": "3"}]


@pytest.mark.parametrize(
    ("format", "data", "columns"),
    [
        ("csv", b"prompt;n\na;2\n", {"prompt": "a", "n": 2}),
        ("tsv", b"prompt\tnote\na;b\tc\n", {"prompt": "a;b", "note": "c"}),
        ("json", b'[{"prompt": "a"}]', {"prompt": "a"}),
        ("txt", b"a,b\n", {"prompt": "a,b"}),
        ("jsonl", b'{"prompt": "a"}', {"prompt": "a"}),
    ],
)
def test_a_format_that_is_given(
    format: str, data: bytes, columns: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose ending lies or is missing, packed or not, and standard input."""
    reading = Reading(format=InputFormat(format))
    for name, written in (("rows", data), ("rows.dat", data), ("rows.gz", gzip.compress(data))):
        path = tmp_path / name
        path.write_bytes(written)
        with open_rows(str(path), reading) as source:
            assert [row.columns for row in source] == [columns]
    with (tmp_path / "rows").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        with open_rows("-", reading) as source:
            assert [row.columns for row in source] == [columns]


@pytest.mark.parametrize(
    ("name", "reading", "field"),
    [
        ("in.jsonl", Reading(delimiter=";"), "delimiter"),
        ("-", Reading(format=InputFormat.PARQUET), None),
        ("hf:own/data", Reading(format=InputFormat.CSV), "input_format"),
        ("hf:own/data", Reading(delimiter=";"), "delimiter"),
        ("in.dat", Reading(), "input_format"),
    ],
)
def test_a_format_that_does_not_go_with_the_input_is_refused(
    name: str, reading: Reading, field: str | None, tmp_path: Path
) -> None:
    path = tmp_path / name
    if name.startswith("in."):
        path.write_text("{}")
        name = str(path)
    with pytest.raises(UsageError) as caught, open_rows(name, reading):
        pass
    assert caught.value.field == field
