"""A table in, the same table with the answers out: what pandas opens is what it had written."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from pyarrow import parquet

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.output.row_lookup import find_rows
from pagedrun.paged.job.signals import JobInterrupted
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.heard import Heard
from tests.support.scripted_model import ScriptedModel, config_for, echo

FRAME = pandas.DataFrame(
    {
        "prompt": ['say "a", b; c', "two\nlines\r\nor three", "a|b\tc", "é 日本"],
        "note": ["=1+1", ", ,", "'", ";;;"],
        "price": [1.5, None, 3.25, -0.1],
        "count": [1, 2, 3, 2**53 + 1],
        "when": pandas.to_datetime(["2020-01-01", "1999-12-31", "2024-02-29", "1970-01-01"]),
        "text": ["a", "b", "c", "d"],
        "index": [7, 7, 7, 7],
        "max_tokens": [3, 4, 4, 4],
    }
)
OURS = ["answer", "finish_reason", "error"]
Texts = list[str | None]


def saying(*texts: str) -> Callable[[Request], Completion]:
    """Return a model's answers by the row."""

    def answer(request: Request) -> Completion:
        text = texts[request.index]
        return Completion(request, (SampleOutput(0, text, (1,), FinishReason.STOP, None),))

    return answer


def run(config: JobConfig, answer: Callable[[Request], Completion] = echo) -> list[str]:
    """Run a job; return its warnings."""
    heard = Heard()
    run_job(config, heard, ScriptedModel(answer).open())
    return heard.warnings


def table_job(place: Path, source: str, output: str, **changes: Any) -> JobConfig:
    return config_for(place, input=str(place / source), output=str(place / output), **changes)


def expected(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Return what is to be read of a table with the answers to a frame's prompts."""
    answers = {"answer": [f"{text}!" for text in letters(frame)], "finish_reason": "stop"}
    return frame.assign(**answers, error=float("nan"))


def letters(frame: pandas.DataFrame) -> Texts:
    """Return the prompts as the model with 200 letters reads them."""
    return ["".join(chr(ord(letter) % 200) for letter in each) for each in frame["prompt"]]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_csv_of_pandas_comes_back_as_it_was(delimiter: str, place: Path) -> None:
    """Prompts that are left out, cells that change, an index that becomes a column."""
    FRAME.to_csv(place / "in.csv", sep=delimiter)
    warnings = run(table_job(place, "in.csv", "out.csv"))
    assert any("no name" in each for each in warnings)
    found = pandas.read_csv(place / "out.csv", parse_dates=["when"])
    wanted = expected(FRAME)
    pandas.testing.assert_frame_equal(found, wanted, check_dtype=False)
    before = pandas.read_csv(place / "in.csv", sep=delimiter, index_col=0, parse_dates=["when"])
    pandas.testing.assert_frame_equal(found[list(FRAME)], before)


def test_cells_of_a_csv_are_text_in_parquet_and_come_back_byte_by_byte(place: Path) -> None:
    """A `0.70` that is read as a number, and a list whose blanks are lost."""
    (place / "in.csv").write_text(
        'prompt,temperature,messages,note\na,0.70,,007\n,,"[ {""role"": ""user"", ""content"": '
        '""b""} ]",\n'
    )
    run(table_job(place, "in.csv", "out.parquet"))
    table = parquet.read_table(place / "out.parquet")
    assert {str(each) for each in table.schema.types} == {"string"}
    assert table["temperature"].to_pylist() == ["0.70", ""]
    assert table["messages"].to_pylist()[1] == '[ {"role": "user", "content": "b"} ]'
    assert table["note"].to_pylist() == ["007", ""]


def typed_frame() -> pandas.DataFrame:
    columns: dict[str, Any] = {
        "prompt": ["a", "b", "c"],
        "day": [date(2020, 1, 1), None, date(1999, 12, 31)],
        "when": pandas.to_datetime(
            ["2020-01-01T00:00:00.123456789", None, "1999-12-31"], format="ISO8601"
        ),
        "zoned": pandas.to_datetime(["2020-07-01T12:00", "2020-01-01T12:00", None]).tz_localize(
            "Europe/Berlin"
        ),
        "kind": pandas.Categorical(["x", "y", "x"]),
        "small": pandas.array([1, None, 3], dtype="Int8"),
        "half": pandas.array([0.1, None, 1 / 3], dtype="float32"),
        "flag": pandas.array([True, None, False], dtype="boolean"),
        "huge": pandas.array([2**63, 0, 1], dtype="uint64"),
        "exact": [Decimal("1.50"), None, Decimal("-2.25")],
        "bytes": [b"\x00\xff", None, b""],
        "span": pandas.to_timedelta(["1 days 00:00:00.000000001", None, "-1 s"]),
        "at": [time(12, 34, 56, 789), None, time(0)],
        "list": [[1, 2], None, []],
        "nested": [{"at": pandas.Timestamp("2020-01-01"), "of": [b"x", None]}, None, {"at": None}],
        "none": [None, None, None],
    }
    return pandas.DataFrame(columns, index=pandas.Index(["r1", "r2", "r3"], name="key"))


def test_a_parquet_file_keeps_types_and_index(place: Path) -> None:
    """Timestamps that become text, categories, exact numbers, and the index of the frame."""
    typed_frame().to_parquet(place / "in.parquet")
    before = parquet.read_table(place / "in.parquet")
    for shards in (None, 2):
        config = table_job(place, "in.parquet", "out.parquet", shards=shards, overwrite=True)
        run(config)
        files = sorted(place.glob("out*.parquet"))
        after = pyarrow.concat_tables([parquet.read_table(each) for each in files])
        assert after.column_names == [*before.column_names, *OURS]
        assert after.select(before.column_names).schema.equals(before.schema)
        for name in before.column_names:
            assert after[name].to_pylist() == before[name].to_pylist(), name
        assert after["answer"].to_pylist() == ["a!", "b!", "c!"]
        for each in files:
            each.unlink()
    run(table_job(place, "in.parquet", "whole.parquet"))
    frame = pandas.read_parquet(place / "whole.parquet")
    read = pandas.read_parquet(place / "in.parquet")
    pandas.testing.assert_frame_equal(frame[list(read)], read)


def test_types_of_one_column_that_two_files_have_otherwise(place: Path) -> None:
    """A column that is a timestamp in one file and a text in another."""
    for name, values in (("a", pandas.to_datetime(["2020-01-01"])), ("b", ["soon"])):
        pandas.DataFrame({"prompt": [name], "when": values, name: 1}).to_parquet(
            place / f"{name}.parquet"
        )
    more = (str(place / "b.parquet"),)
    run(table_job(place, "a.parquet", "out.parquet", more_inputs=more))
    frame = pandas.read_parquet(place / "out.parquet")
    assert list(frame) == ["prompt", "when", "a", "b", "file", *OURS]
    assert frame["when"].tolist() == ["2020-01-01T00:00:00", "soon"]
    assert frame["file"].tolist() == [str(place / "a.parquet"), *more]


def test_a_type_that_cannot_hold_all_rows_loses_none(place: Path) -> None:
    """Categories of 8 bits, of which each of two files has as many as there can be."""
    names = [str(place / f"{number}.parquet") for number in range(2)]
    for number, name in enumerate(names):
        kinds = [f"{number}-{kind}" for kind in range(100)]
        table = pyarrow.table(
            {
                "prompt": ["a"] * len(kinds),
                "kind": pyarrow.array(kinds)
                .dictionary_encode()
                .cast(pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
            }
        )
        parquet.write_table(table, name)
    config = table_job(place, "0.parquet", "out.parquet", more_inputs=(names[1],))
    warnings = run(config)
    assert any("instead of the input's" in each for each in warnings)
    kinds = parquet.read_table(place / "out.parquet")["kind"].to_pylist()
    assert (kinds[0], kinds[-1], len(set(kinds))) == ("0-0", "1-99", 200)


JSON_ANSWERS = [
    '{"title": "a, b", "score": 1, "ok": true, "tags": ["x"]}',
    '```json\n{"title": null, "score": 2.5, "extra": {"deep": "y"}}\n```',
    "no JSON",
    '{"title": "c", "score": 3, "score": 4}',
    "[1, 2]",
]
PROMPTS = [{"prompt": str(number), "id": number} for number in range(len(JSON_ANSWERS))]


def test_keys_of_json_answers_are_columns(place: Path) -> None:
    """A key of another row, a nested value that fits no column, and answers that are no JSON."""
    columns = ("id,json.title,json.score", "json.ok,json.tags.0,json.tags,json.extra.deep,answer")
    config = config_for(place, PROMPTS, output=str(place / "out.parquet"), columns=columns)
    warnings = run(config, saying(*JSON_ANSWERS))
    table = parquet.read_table(place / "out.parquet")
    kinds = {field.name: str(field.type) for field in table.schema}
    assert kinds == {
        "id": "int64",
        "json.title": "string",
        "json.score": "double",
        "json.ok": "bool",
        "json.tags.0": "string",
        "json.tags": "string",
        "json.extra.deep": "string",
        "answer": "string",
    }
    rows = table.to_pylist()
    assert [row["json.title"] for row in rows] == ["a, b", None, None, None, None]
    assert [row["json.score"] for row in rows] == [1.0, 2.5, None, None, None]
    assert rows[0]["json.tags"] == '["x"]'
    assert (rows[0]["json.tags.0"], rows[1]["json.extra.deep"]) == ("x", "y")
    assert [row["answer"] for row in rows] == JSON_ANSWERS
    assert any("2 of 5 answers are no JSON" in each for each in warnings)


def test_all_keys_of_json_answers(place: Path) -> None:
    """A column of the input with the name of another, and keys in the order of the last row."""
    source = [{**row, "json.ok": "mine"} for row in PROMPTS]
    config = config_for(place, source, output=str(place / "out.csv"), explode_json=True)
    run(config, saying(*JSON_ANSWERS))
    with (place / "out.csv").open(newline="") as file:
        header, *records = csv.reader(file)
    new = ["json.title", "json.score", "json.tags", "json.extra"]
    assert header == ["prompt", "id", "json.ok", *OURS, *new]
    assert records[0][-4:] == ["a, b", "1", '["x"]', ""]
    assert records[1][-4:] == ["", "2.5", "", '{"deep":"y"}']
    lines = replace(config, output=str(place / "out.jsonl"), columns=("id",))
    run(lines, saying(*JSON_ANSWERS))
    first = json.loads((place / "out.jsonl").read_text().splitlines()[0])
    assert list(first) == ["id", "json.title", "json.score", "json.ok", "json.tags", "json.extra"]


def test_more_keys_than_a_table_has_columns(place: Path) -> None:
    """A model that makes up keys without end."""
    many = json.dumps({f"k{number}": number for number in range(1500)})
    config = config_for(place, PROMPTS[:1], output=str(place / "out.csv"), explode_json=True)
    warnings = run(config, saying(many))
    assert any("more than 1,000 keys" in each for each in warnings)
    frame = pandas.read_csv(place / "out.csv")
    assert frame["answer"][0] == many
    assert len(frame.columns) == 2 + 3 + 1000


def test_a_key_that_the_schema_does_not_have_is_refused(place: Path) -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    model = ScriptedModel()

    def asked(**more: Any) -> JobConfig:
        sampling = SamplingParams(json_schema=json.dumps({**schema, **more}))
        return config_for(
            place,
            PROMPTS,
            sampling=sampling,
            columns=("id,json.titel",),
            output=str(place / "out.csv"),
        )

    with pytest.raises(UsageError, match=r"no titel.*did you mean json\.title\?") as caught:
        run_job(asked(), None, model.open())
    assert caught.value.field == "columns"
    assert model.num_loads == 0
    run_job(asked(additionalProperties=True), None, model.open())


def test_a_column_of_the_input_with_the_name_of_the_answers(place: Path) -> None:
    """The gold answers of a dataset, taken for those of the model."""
    rows = [{"prompt": "a", "answer": "gold", "error": "mine", "finish_reason": 7}]
    config = config_for(place, rows, output=str(place / "out.csv"))
    for columns in ((), ("id,answer",)):
        with pytest.raises(UsageError, match="answer_column") as caught:
            run(replace(config, columns=columns))
        assert caught.value.field == "answer_column"
    warnings = run(replace(config, answer_column="model"))
    assert sum("of its own, which is kept" in each for each in warnings) == 2
    (row,) = pandas.read_csv(place / "out.csv").to_dict("records")
    assert row == {
        "prompt": "a",
        "answer": "gold",
        "error": "mine",
        "finish_reason": 7,
        "model": "a!",
        "model_finish_reason": "stop",
        "model_error": pytest.approx(float("nan"), nan_ok=True),
    }
    lines = replace(config, output=str(place / "o.jsonl"), answer_column="model")
    lines = replace(lines, origins={"answer_column": "flag"})
    warnings = run(replace(lines, columns=("prompt,input.answer,text",)))
    assert any("answer_column" in each for each in warnings)  # which has no effect there
    assert json.loads((place / "o.jsonl").read_text()) == {
        "prompt": "a",
        "input.answer": "gold",
        "text": "a!",
    }


@pytest.mark.parametrize("name", ["", "a,b", "error", "finish_reason", "a\nb"])
def test_a_name_that_the_answers_cannot_have(name: str, place: Path) -> None:
    with pytest.raises(UsageError, match="answer_column"):
        config_for(place, [{"prompt": "a"}], answer_column=name)


def test_columns_that_come_late_are_columns(place: Path) -> None:
    """A column that only rows of the last window have, one of which is called as the answers."""
    rows = [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c", "late": [1], "answer": "mine"}]
    config = config_for(place, rows, output=str(place / "out.csv"), window=WindowSize(rows=1))
    run(config)
    frame = pandas.read_csv(place / "out.csv", keep_default_na=False)
    assert list(frame) == ["prompt", "late", "answer", "answer_answer", "finish_reason", "error"]
    assert frame["late"].tolist() == ["", "", "[1]"]
    assert frame["answer_answer"].tolist() == ["a!", "b!", "c!"]


def test_bad_records_keep_their_cells(place: Path) -> None:
    """A row of the table that is empty, so that nobody knows which one failed."""
    (place / "in.csv").write_bytes(
        b'prompt,n,note\na,1,x\nb,2\nc,nan,"y"\nd,1,z,more\n\xff,1,w\n\x00,1,v\n'
    )
    run(table_job(place, "in.csv", "out.csv"))
    with (place / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["prompt"], row["note"]) for row in rows] == [
        ("a", "x"),
        ("b", ""),
        ("c", "y"),
        ("d", "z"),
        ("\ufffd", "w"),
        ("\x00", "v"),
    ]
    codes = [row["error"].partition(":")[0] for row in rows]
    bad = "invalid_csv_record"
    assert codes == ["", bad, "invalid_param", bad, "invalid_utf8", ""]
    assert [row["finish_reason"] for row in rows][:2] == ["stop", "error"]


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_run_that_was_cut_off_gives_the_whole_table(name: str, place: Path) -> None:
    """Columns of rows that the run before has answered."""
    FRAME.to_csv(place / "in.csv")
    config = table_job(place, "in.csv", name)
    answered = 0

    def cut(request: Request) -> Completion:
        nonlocal answered
        answered += 1
        if answered == 3:
            raise JobInterrupted(2)
        return echo(request)

    with pytest.raises(JobInterrupted):
        run(config, cut)
    assert not (place / name).exists()
    run(replace(config, resume=True, columns=("text,prompt,answer",)))
    chosen = place / name
    read = pandas.read_csv if name.endswith("csv") else pandas.read_parquet
    assert list(read(chosen)) == ["text", "prompt", "answer"]
    whole = table_job(place, "in.csv", f"whole-{name}")
    run(whole)
    resumed = table_job(place, "in.csv", f"other-{name}")
    answered = 0
    with pytest.raises(JobInterrupted):
        run(resumed, cut)
    run(replace(resumed, resume=True))
    assert Path(resumed.output).read_bytes() == Path(whole.output).read_bytes()


def test_rows_of_an_older_journal_are_not_half_a_table(place: Path) -> None:
    config = config_for(place, [*PROMPTS, "torn {"], output=str(place / "out.csv"))
    run(config)
    manifest = place / "out.csv.run.json"
    found = json.loads(manifest.read_text())
    del found["parameters"]["answer_column"]
    manifest.write_text(json.dumps(found))
    with pytest.raises(UsageError, match="older version"):
        run(replace(config, resume=True, retry_errors=True))


def test_chosen_columns_are_streamed(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A pipe that gets the whole row, or gets it at the end."""
    seen: list[int] = []

    def look(request: Request) -> Completion:
        seen.append(len(capfd.readouterr().out.splitlines()))
        return saying(*JSON_ANSWERS)(request)

    columns = ("prompt,json.title,answer",)
    config = config_for(place, PROMPTS[:3], output="-", columns=columns)
    warnings = run(config, look)
    last = capfd.readouterr().out
    assert seen == [0, 1, 1]  # rows of the script end in reverse order
    assert json.loads(last) == {"prompt": "0", "json.title": "a, b", "answer": JSON_ANSWERS[0]}
    assert any("1 of 3 answers are no JSON" in each for each in warnings)
    assert capfd.readouterr().out == ""
    run(replace(config, output="/dev/null"))  # as any other device


def test_rows_of_a_table_are_found_by_their_ids(place: Path) -> None:
    """The input's own column `index`, taken for the place of the row."""
    frame = pandas.DataFrame({"prompt": ["a", "b"], "index": [5, 6], "id": ["x", None]})
    frame.to_csv(place / "in.csv", index=False)
    frame.drop(columns="id").to_parquet(place / "in.parquet")
    for source, output in (("in.csv", "out.csv"), ("in.parquet", "out.parquet")):
        run(table_job(place, source, output))
    assert find_rows(["row-1", "id:x"], place / "out.csv") == {"row-1": 1, "id:x": 0}
    assert find_rows(["row-1"], place / "out.parquet") == {"row-1": 1}
    with pytest.raises(UsageError, match="no row"):
        find_rows(["row-6"], place / "out.parquet")


def test_answers_to_batch_calls_are_a_table(place: Path) -> None:
    """Answers that are hidden in a response, and errors in another place than elsewhere."""
    bodies: list[Any] = [{"messages": [{"role": "user", "content": "a"}]}, {"messages": 5}]
    rows = [
        {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number, body in enumerate(bodies)
    ]
    run(config_for(place, rows, output=str(place / "out.csv")))
    frame = pandas.read_csv(place / "out.csv")
    assert list(frame) == ["custom_id", "method", "url", "body", *OURS]
    assert frame["answer"][0] == "a!"
    assert frame["finish_reason"][0] == "stop"
    assert frame["error"][1].startswith("unsupported_content: ")
    columns = ("custom_id,text,error,body.messages.0.role",)
    run(config_for(place, output=str(place / "two.csv"), columns=columns))
    frame = pandas.read_csv(place / "two.csv")
    assert frame["text"][0] == "a!"
    assert frame["body.messages.0.role"][0] == "user"
    run(config_for(place, output=str(place / "all.csv"), columns=("all",)))
    assert list(pandas.read_csv(place / "all.csv")) == [
        *("index", "id", "custom_id", "response", "error")
    ]
