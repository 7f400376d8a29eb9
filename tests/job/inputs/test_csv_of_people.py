"""CSV files as people have them; what is right is what pandas reads."""

import csv
import hashlib
import io
import re
from pathlib import Path
from typing import Any

import pandas
import pytest

from pagedrun.paged.job.inputs.csv_dialect import CsvDialect
from pagedrun.paged.job.inputs.reader import InputFormat, Reading, open_rows
from pagedrun.paged.values.errors import UsageError

Frame = list[dict[str, Any]]


def read(path: Path, reading: Reading | None = None) -> tuple[Frame, dict[str, str]]:
    """Return the columns of the rows, which have no errors, and the notes."""
    with open_rows(str(path), reading or Reading()) as source:
        rows = list(source)
        assert [row.error for row in rows] == [None] * len(rows)
        return [dict(row.columns) for row in rows], source.facts.notes


def by_pandas(data: bytes, **options: Any) -> Frame:
    options = {"dtype": str, "keep_default_na": False, **options}
    frame: Frame = pandas.read_csv(io.BytesIO(data), **options).to_dict("records")
    return frame


FILES: list[tuple[bytes, dict[str, Any], str | None]] = [
    (b"id,text,\n1,a,\n2,b,\n", {}, "column 3 has no name, and is called 'Unnamed: 2'"),
    (b"id,text,,\n1,a,,\n2,b,,x\n", {}, "'Unnamed: 2'"),
    (b"a,,b\n1,2,3\n", {}, "column 2 has no name"),
    (b"a,Unnamed: 2,\n1,2,3\n", {}, "'Unnamed: 2.1'"),
    (b"id,text\n1,a,\n2,b,\n", {"index_col": False}, None),
    (b"sep=;\r\nid;text\r\n1;a,b\r\n", {"sep": ";", "skiprows": 1}, None),
    (b'\xef\xbb\xbf"sep=,"\nid,text\n1,a;b\n', {"skiprows": 1}, None),
    (b"SEP=\t\nid\ttext\n1\ta;b\n", {"sep": "\t", "skiprows": 1}, "separated by"),
    (b'id, text\n1, a\n2, "b, c"\n', {"skipinitialspace": True}, "a blank follows each ','"),
    (b"id ,\ttext\n1,a \n2, b\n", {"names": ["id", "text"], "header": 0}, None),
    (b'id,text\r1,a\r\r2,"b\rc"\r', {}, None),
    (b'id,text\r\n1,"a\rb"\r\n2,c\r\n', {}, None),
    (b'id,text\n\n1,"say ""hi""\n\nyou"\n\n', {}, None),
    (b"id,text\n1,a\x00b\n", {"engine": "python"}, None),
    (b"id;text;\n1;1,5;\n2;2,5;\n", {"sep": ";"}, "separated by"),
    (b"text\nHello, you\nnothing\n", {"sep": "\t"}, None),
]


@pytest.mark.filterwarnings("ignore:Length of header")  # of pandas, for an empty cell more
@pytest.mark.parametrize(("data", "options", "note"), FILES)
def test_a_file_is_read_as_by_pandas(
    data: bytes, options: dict[str, Any], note: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(data)
    reading = Reading(delimiter="tab") if options.get("sep") == "\t" else Reading()
    rows, notes = read(path, reading if data.startswith(b"text") else None)
    if b"\x00" in data:
        assert rows == [{"id": "1", "text": "a\x00b"}]  # pandas drops what follows
        return
    assert rows == by_pandas(data, **options)
    assert note is None or any(note in each for each in notes.values())


def test_a_record_may_lack_cells_of_columns_without_names(tmp_path: Path) -> None:
    """Every line but some ends in a comma."""
    path = tmp_path / "in.csv"
    path.write_text("id,text,\n1,a\n2,b,\n")
    assert read(path)[0] == [
        {"id": "1", "text": "a", "Unnamed: 2": ""},
        {"id": "2", "text": "b", "Unnamed: 2": ""},
    ]


def test_one_stray_comma_fails_its_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("text\nHello, you\nnothing\nnor here\n")
    with open_rows(str(path)) as source:
        codes = [row.error and row.error.code for row in source]
    assert codes == ["invalid_csv_record", None, None]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_and_digests_do_not_depend_on_their_ends(
    end: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.csv"
    text = end.join(["id,text", "1,a", "", '2,"b', "", 'c"', "3,d", ""])
    path.write_bytes(text.encode())
    with open_rows(str(path)) as source:
        rows = list(source)
    assert [row.line for row in rows] == [2, 4, 7]
    assert [row.byte_offset for row in rows] == [text.index(each) for each in ("1,a", "2,", "3,d")]
    assert rows[1].columns["text"] == f"b{end}{end}c"
    assert rows[2].digest == hashlib.sha256(b"3,d").digest()


def test_a_cell_of_many_lines_is_read_in_blocks(tmp_path: Path) -> None:
    """A quote at the border of two blocks, and lines without end in a cell."""
    path = tmp_path / "in.csv"
    cells = ["\n" * 200_000, 'x"\n' * 50_000, "é\n" * 70_000, "last"]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *enumerate(cells)])
    rows, _ = read(path, Reading(max_line_bytes=500_000))
    assert [row["text"] for row in rows] == cells
    with open_rows(str(path), Reading(max_line_bytes=300_000)) as source:
        lines = [row.line for row in source]
    assert lines == [2, 200_003, 250_004, 320_005]


TEXT = "id,text\n1,naïve café – “yes” €\n2,plain\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("format", ["csv", "jsonl", "json", "txt"])
def test_other_encodings_are_found_by_their_mark(
    encoding: str, format: str, tmp_path: Path
) -> None:
    path = tmp_path / f"in.{format}"
    text = {
        "csv": TEXT,
        "jsonl": '{"text": "naïve 日本"}\n{"text": "plain"}\n',
        "json": '[{"text": "naïve 日本"}, {"text": "plain"}]',
        "txt": "naïve 日本\nplain\n",
    }[format]
    mark = "\ufeff" if encoding[-3:] in ("-le", "-be") else ""
    path.write_bytes((mark + text).encode(encoding))
    rows, notes = read(path)
    path.write_text(text, encoding="utf-8")
    assert (rows, notes) == (read(path)[0], {})
    assert len(rows) == 2


def test_an_encoding_that_is_given(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    for encoding in ("cp1252", "utf-16-le", "mac_roman", "utf-8"):
        path.write_bytes(TEXT.encode(encoding))
        rows, notes = read(path, Reading(encoding=encoding))
        assert rows == by_pandas(path.read_bytes(), encoding=encoding)
        assert not notes
        with open_rows(str(path), Reading(encoding=encoding)) as source:
            list(source)
            assert source.digest(whole=True).num_bytes == path.stat().st_size


@pytest.mark.parametrize(
    ("text", "encoding", "advice"),
    [
        (TEXT, "cp1252", "line 2: the text is not UTF-8.*pass .*encoding.* cp1252"),
        ("text\nпривет мир\nдва\n", "cp1251", "line 2: .*such as cp1251"),
        ("text\nx\n日本語の文章\n", "shift_jis", "line 3: .*or shift_jis"),
    ],
)
def test_the_likely_encoding_is_offered_before_rows_fail(
    text: str, encoding: str, advice: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(text.encode(encoding))
    with open_rows(str(path)) as source:
        assert re.search(advice, source.facts.notes["encoding"])
        errors = [row.error for row in source if row.error is not None]
    assert {error.code for error in errors} == {"invalid_utf8"}
    assert all(re.search("UTF-8; pass .*encoding.*of the file", each.message) for each in errors)
    assert "encoding" not in read(path, Reading(encoding=encoding))[1]


def test_bytes_that_an_encoding_lacks_fail_their_row(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"text\na\x81\nb\xe9\n")
    with open_rows(str(path), Reading(encoding="cp1252")) as source:
        rows = list(source)
    assert [row.error and row.error.code for row in rows] == ["invalid_utf8", None]
    assert rows[1].columns == {"text": "bé"}
    path.write_bytes("text\na\n".encode("utf-16")[:-1])
    with pytest.raises(UsageError, match="is not utf-16 near byte"):
        read(path)


def test_an_encoding_is_refused_where_there_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    for name in (str(tmp_path / "in.parquet"), "hf:own/data"):
        with (
            pytest.raises(UsageError, match=r"encoding.* applies to"),
            open_rows(name, Reading(encoding="cp1252")),
        ):
            pass


def test_a_dialect_of_nothing() -> None:
    for sample in (b"", b"\n", b"sep=;", b'"', b"\r", b"sep=\xff\na", b"sep=\0\na"):
        assert CsvDialect.find(sample).split_record is None


def test_unused_messages_do_not_fail_a_row(tmp_path: Path) -> None:
    """A column `messages` that is data, beside the field of the prompt."""
    path = tmp_path / "in.csv"
    path.write_text("text,messages\na,three of them\n")
    with open_rows(str(path), Reading(format=InputFormat.CSV)) as source:
        (row,) = source
    assert row.error is None
    assert row.unreadable["messages"].code == "invalid_param"
    assert row.given == {"text": "a", "messages": "three of them"}
