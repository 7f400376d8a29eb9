"""Answers as Parquet, CSV, packed lines and shards: what pandas reads of them is what it reads of
JSONL, and no ending or column is taken for another."""

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from pagedrun.paged.job.job import run_job
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from tests.support.heard import Heard
from tests.support.scripted_model import ScriptedModel, config_for

HOSTILE = [
    "",
    "NA",
    'a "quoted" word, and another',
    "=1+1",
    "one\ntwo\r\nthree\rfour",
    "line\u2028separator \u0085 and \x0b",
    "日本語 👩‍👩‍👧 \u202eright to left",
    "\x00\x01\x1b[31mred",
    "'; DROP TABLE rows; --",
    " blanks around \t",
]
ROWS: list[Any] = [
    {
        "prompt": "a",
        "id": number,
        "text": hostile,
        "category": hostile,
        "mixed": number if number % 2 else hostile,
        "half": number / 2 if number % 3 else number,
        "nested": {"deep": [{"x": hostile}] * (number % 3)},
        "big": 2**53 + number,
        "huge": 2**70,
        "flag": None if number == 3 else True,
        "none": None,
        "empty": {},
        "input.text": number,
        "n": 1 + number % 2,
    }
    for number, hostile in enumerate(HOSTILE)
] + ["torn {", {"x": 1, "prompt": ""}]


def hostile_answer(request: Request) -> Completion:
    """Answer with the hostile text of the row."""
    outputs = tuple(
        SampleOutput(place, HOSTILE[request.index], (1, 2), FinishReason.STOP, 7 if place else "é")
        for place in range(request.params.n)
    )
    return Completion(request, outputs, num_cached_tokens=1)


def answered(place: Path, name: str, **changes: Any) -> Path:
    """Run the job with an output of this name; return where it is."""
    config = config_for(place, ROWS, output=str(place / name), **changes)
    run_job(config, None, ScriptedModel(hostile_answer).open())
    return place / name


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of lines that end with a newline and with nothing else."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def plain_rows(place: Path) -> list[dict[str, Any]]:
    return lines_of(answered(place, "plain.jsonl", ordered=True))


def comparable(value: Any, like: Any) -> Any:
    """Return a value of a table as JSON has it where that is `like`: a table has null where a row
    lacks a key, and the text of what has several types."""
    if isinstance(like, dict) and isinstance(value, dict):
        assert all(value[key] is None for key in value.keys() - like.keys())
        return {key: comparable(value[key], like[key]) for key in like}
    if isinstance(like, list) and isinstance(value, list):
        return [comparable(each, other) for each, other in zip(value, like, strict=True)]
    if isinstance(value, str) and not isinstance(like, str):
        return json.loads(value)
    return value


def test_parquet_holds_what_the_lines_hold(place: Path) -> None:
    """A hostile text, a null, a nested value or a sample that is lost or changed."""
    table = parquet.read_table(answered(place, "out.parquet", columns=("all",)))
    rows = plain_rows(place)
    assert table.column_names == list(rows[0])
    for found, row in zip(table.to_pylist(), rows, strict=True):
        mixed = found["input"]["mixed"]
        if mixed is not None:
            found["input"]["mixed"] = json.loads(mixed)
        if found["id"] != row["id"]:  # a row that cannot be read has a text for an id
            found["id"] = int(found["id"])
        assert comparable(found, row) == row
    frame = pandas.read_parquet(place / "out.parquet")
    texts = frame["text"].astype(object).where(frame["text"].notna(), None)
    assert texts.tolist() == [row["text"] for row in rows]
    assert sorted(path.name for path in place.glob("out*")) == [
        "out.parquet",
        "out.parquet.journal.jsonl",  # of the rows that failed, for --retry-errors
        "out.parquet.journal.jsonl.digests",
        "out.parquet.report.json",
        "out.parquet.run.json",
        "out.parquet.snapshot.npz",
    ]


def test_the_types_of_a_table(place: Path) -> None:
    """A column whose type depends on which rows failed, or that forgets what a list is of."""
    schema = parquet.read_schema(answered(place, "out.parquet", columns=("all",)))
    output = schema.field("outputs").type.value_type
    assert output.field("token_ids").type == pyarrow.list_(pyarrow.int64())
    assert output.field("stop_reason").type == pyarrow.string()
    assert "beam_score" not in [field.name for field in output]
    assert schema.field("error").type.field("line").type == pyarrow.int64()
    columns = schema.field("input").type
    kinds = {field.name: str(field.type) for field in columns}
    assert kinds["half"] == "double"
    assert kinds["big"] == "int64"
    assert kinds["flag"] == "bool"
    assert kinds["nested"] == "struct<deep: list<element: struct<x: string>>>"
    assert {kinds[name] for name in ("mixed", "huge", "none", "empty")} == {"string"}


def test_rows_that_all_failed_have_the_same_table(place: Path) -> None:
    config = config_for(place, ["torn {"], output=str(place / "failed.parquet"), columns=("all",))
    run_job(config, None, ScriptedModel().open())
    schema = parquet.read_schema(place / "failed.parquet")
    assert schema.field("text").type == pyarrow.string()
    assert schema.field("outputs").type.value_type.field("index").type == pyarrow.int64()


def test_csv_holds_what_the_lines_hold(place: Path) -> None:
    """A newline in a cell that ends its record, a quote that ends it, a null that is a text."""
    path = answered(place, "out.csv", flatten=True)
    rows = plain_rows(place)
    with path.open(encoding="utf-8", newline="") as file:
        header, *records = csv.reader(file, strict=True)
    assert len(records) == len(rows)
    for record, row in zip(records, rows, strict=True):
        cells = dict(zip(header, record, strict=True))
        assert cells["text"] == (row["text"] or "")
        assert json.loads(cells["outputs"]) == row["outputs"]
        assert cells["input.text"] == row["input"].get("text", "")
        assert cells["prompt_tokens"] == str(row["usage"]["prompt_tokens"])
        assert (json.loads(cells["error"]) if cells["error"] else None) == row["error"]
    frame = pandas.read_csv(path, keep_default_na=False)
    assert frame["text"].tolist() == [row["text"] or "" for row in rows]
    assert frame["category"].tolist() == [row["input"].get("category", "") for row in rows]
    options = arrow_csv.ConvertOptions(
        column_types={"text": pyarrow.string()},
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    lines = arrow_csv.ParseOptions(newlines_in_values=True)
    table = arrow_csv.read_csv(path, parse_options=lines, convert_options=options)
    assert table["text"].to_pylist() == [row["text"] for row in rows]
    assert {"", None} < {row["text"] for row in rows}


def test_packed_lines_are_the_lines(place: Path) -> None:
    data = gzip.decompress(answered(place, "out.jsonl.gz").read_bytes())
    assert data == answered(place, "plain.jsonl", ordered=True).read_bytes()


def test_shards_hold_every_row_once(place: Path) -> None:
    """Rows that fall between two shards, and shards whose tables cannot be read together."""
    answered(place, "out.parquet", shards=5, columns=("all",))
    paths = sorted(place.glob("out-*"))
    assert [path.name for path in paths] == [f"out-{n:05}-of-00005.parquet" for n in range(5)]
    tables = [parquet.read_table(path) for path in paths]
    assert [table.num_rows for table in tables] == [3, 3, 2, 2, 2]
    together = pyarrow.concat_tables(tables)  # wants one schema
    assert together["index"].to_pylist() == list(range(12))
    assert not (place / "out.parquet").exists()
    answered(place, "lines.jsonl", shards=20)  # more than rows
    lines = b"".join(path.read_bytes() for path in sorted(place.glob("lines-*")))
    assert lines == answered(place, "plain.jsonl", ordered=True).read_bytes()
    with pytest.raises(UsageError, match=r"out-00000-of-00005.parquet belongs to another number"):
        answered(place, "out.parquet", shards=2, overwrite=True)


def test_chosen_columns(place: Path) -> None:
    """A path that finds the wrong value, or none where there is one."""
    names = ("id,text", "usage.prompt_tokens, outputs.1.text", "input.category,input.input.text")
    rows = lines_of(answered(place, "out.jsonl", columns=names))
    for found, row in zip(rows, plain_rows(place), strict=True):
        assert list(found) == [name.strip() for each in names for name in each.split(",")]
        outputs = row["outputs"]
        assert found == {
            "id": row["id"],
            "text": row["text"],
            "usage.prompt_tokens": row["usage"]["prompt_tokens"],
            "outputs.1.text": outputs[1]["text"] if len(outputs) > 1 else None,
            "input.category": row["input"].get("category"),
            "input.input.text": row["input"].get("input.text"),
        }


def test_flattened_columns_lose_nothing(place: Path) -> None:
    """A column of the input that hides the answer: `text` is both."""
    rows = lines_of(answered(place, "out.jsonl", flatten=True))
    first, plain = rows[1], plain_rows(place)[1]
    assert first["text"] == plain["text"]
    assert first["input.text"] == plain["input"]["text"]
    assert first["input.input.text"] == plain["input"]["input.text"]
    assert first["category"] == plain["input"]["category"]
    assert first["cached_tokens"] == plain["usage"]["cached_tokens"]
    assert "usage" not in first
    assert "input" not in first


def test_a_column_that_no_row_has_is_named(place: Path) -> None:
    """One that rows of a later window may have, so that it is no reason to refuse the run."""
    config = config_for(place, ROWS, output=str(place / "o.csv"), columns=("id,input.categoty",))
    heard = Heard()
    first = replace(config, window=WindowSize(rows=2))
    run_job(first, heard, ScriptedModel(hostile_answer).open())
    assert any("input.categoty" in warning for warning in heard.warnings)
    with pytest.raises(UsageError, match=r"did you mean input\.category\?") as caught:
        run_job(replace(config, overwrite=True), None, ScriptedModel(hostile_answer).open())
    assert caught.value.field == "columns"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"output": "x.xlsx"}, r"\.xlsx is not an output format.*\.parquet or \.csv"),
        ({"output": "x.json"}, r"\.json is not an output format"),
        ({"output": "-", "explode_json": True}, r"explode_json.*file with -o"),
        ({"output": "/dev/null", "explode_json": True}, r"explode_json.*file with -o"),
        ({"output": "-", "shards": 2}, r"shards.*file with -o"),
        ({"output": "x.csv", "columns": ("id,txt",)}, r"no column txt; did you mean text\?"),
        ({"output": "x.csv", "columns": ("promt",)}, r"no column promt; did you mean prompt\?"),
        ({"output": "x.jsonl", "columns": ("promt",)}, r"did you mean prompt\?"),
        ({"output": "-", "columns": ("anwser",)}, r"did you mean answer\?"),
        ({"output": "x.csv", "columns": ("input.promt",)}, r"did you mean input\.prompt\?"),
        ({"output": "x.csv", "columns": ("prompt.x",)}, "no column prompt.x"),
        ({"output": "x.csv", "columns": ("id,text.title",)}, r"did you mean json\.title,"),
        ({"output": "x.csv", "columns": ("answer.a.b",)}, r"did you mean json\.a\.b,"),
        ({"output": "x.csv", "columns": ("id.x",)}, "id has no parts"),
        ({"output": "x.csv", "columns": ("outputs.text",)}, r"such as outputs\.0\.text"),
        ({"output": "x.csv", "columns": ("outputs.0.txt",)}, r"did you mean outputs\.0\.text\?"),
        ({"output": "x.csv", "columns": ("usage.tokens",)}, "usage has no tokens; it has prompt"),
        ({"output": "x.csv", "columns": ("all,id",)}, r"all means all keys.*input\.all"),
        ({"output": "x.csv", "columns": ("id,id",)}, "id is named twice"),
        ({"output": "x.csv", "columns": ("id,,text",)}, "a name is missing"),
    ],
)
def test_what_cannot_be_written_is_refused(
    changes: dict[str, Any], sentence: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour of answers, and then an ending that nothing can write."""
    monkeypatch.chdir(place)
    model = ScriptedModel()
    with pytest.raises(UsageError, match=sentence):
        run_job(config_for(place, [{"prompt": "a"}], **changes), None, model.open())
    assert model.num_loads == 0
    assert not list(place.glob("x*"))


def test_a_folder_for_all_files(place: Path) -> None:
    folder = place / "runs" / "first"
    config = config_for(place, [{"prompt": "a"}], output=str(folder / "out.jsonl"), out_dir=folder)
    run_job(config, None, ScriptedModel().open())
    assert {path.name for path in folder.iterdir()} == {
        "out.jsonl",
        "out.jsonl.digests",
        "out.jsonl.report.json",
        "out.jsonl.run.json",
        "out.jsonl.snapshot.npz",
    }


def test_a_folder_that_cannot_be_made(place: Path) -> None:
    (place / "file").write_text("")
    folder = place / "file" / "runs"
    config = config_for(place, [{"prompt": "a"}], output=str(folder / "o.jsonl"), out_dir=folder)
    with pytest.raises(UsageError):
        run_job(config, None, ScriptedModel().open())
