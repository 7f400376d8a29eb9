"""Columns of Arrow inputs that no prompt uses: they come back as they went in, in every output."""

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pytest
from pyarrow import parquet

from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.output import kept_tables
from pagedrun.paged.job.output.output_file import OutputError
from pagedrun.paged.job.prompts.prompt_config import PromptConfig, PromptTemplate
from pagedrun.paged.job.signals import JobInterrupted
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.request import Completion, Request
from tests.support.arrow_types import every_type, stored
from tests.support.heard import Heard
from tests.support.scripted_model import ScriptedModel, config_for, echo

OURS = ["answer", "finish_reason", "error"]
PROMPTS = pa.array(["a", None, "c"])


def source(place: Path, name: str = "in.parquet") -> Any:
    """Write a file with a column of every type; return its table as Arrow reads it."""
    table = every_type().append_column("prompt", PROMPTS)
    parquet.write_table(table, place / name, row_group_size=2)
    return parquet.read_table(place / name)


def run(
    place: Path,
    output: str,
    answer: Callable[[Request], Completion] = echo,
    name: str = "in.parquet",
    **changes: Any,
) -> list[str]:
    """Run a job; return its warnings."""
    config = config_for(place, input=str(place / name), output=str(place / output), **changes)
    heard = Heard()
    run_job(config, heard, ScriptedModel(answer).open())
    return heard.warnings


def read(*files: Path) -> Any:
    return pa.concat_tables([parquet.read_table(each) for each in files])


def assert_same(found: Any, given: Any) -> None:
    """Compare columns of `given` in type and value, each byte of it."""
    for name in given.column_names:
        assert found.schema.field(name).equals(given.schema.field(name)), name
        assert stored(found.select([name])) == stored(given.select([name])), name


def test_every_type_comes_back_from_parquet(place: Path) -> None:
    """Infinity that fails its row, NaN that becomes null, a map that becomes lists of text, and a
    failed row that loses all its columns."""
    given = source(place)
    run(place, "out.parquet")
    found = read(place / "out.parquet")
    assert found.column_names == [*given.column_names, *OURS]
    assert_same(found, given)
    assert found["answer"].to_pylist() == ["a!", None, "c!"]
    assert found["error"].to_pylist()[1].startswith("missing_prompt")


@pytest.mark.parametrize("shards", [2, 5])
def test_every_type_comes_back_in_shards_and_windows(shards: int, place: Path) -> None:
    given = source(place)
    run(place, "out.parquet", shards=shards, window=WindowSize(rows=1), ordered=True)
    files = sorted(place.glob("out-*.parquet"))
    assert len(files) == shards
    assert_same(read(*files), given)


def test_every_type_comes_back_in_a_run_that_was_cut_off(place: Path) -> None:
    """Rows of the run before, whose tables nobody has kept."""
    given = source(place)

    def cut(request: Request) -> Completion:
        raise JobInterrupted(2)

    with pytest.raises(JobInterrupted):
        run(place, "out.parquet", cut, window=WindowSize(rows=1))
    run(place, "out.parquet", window=WindowSize(rows=1), resume=True)
    assert_same(read(place / "out.parquet"), given)
    run(place, "out.parquet", resume=True, retry_errors=True)
    assert_same(read(place / "out.parquet"), given)


def test_every_type_of_a_dataset_of_the_hub_comes_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the library gives it, from a cache that is filled: categories are text there."""
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", place / "cache")
    monkeypatch.setattr(library.config, "HF_HUB_OFFLINE", True)
    # The library refuses these.
    others = ("extension<arrow.[ubf]", "decimal32", "decimal64", "map", "list_view", "large_list_v")
    table = every_type().append_column("prompt", PROMPTS)
    kept = [each.name for each in table.schema if not re.match("|".join(others), str(each.type))]
    assert len(kept) > 40
    (place / "data").mkdir()
    parquet.write_table(table.select(kept), place / "data" / "train-00000-of-00001.parquet")
    library.load_dataset(str(place / "data"))
    (place / "cache" / "data").rename(place / "cache" / "own___data")
    opened = library.load_dataset("own/data", split="train", streaming=True)
    [given] = opened.with_format("arrow").iter(batch_size=3)
    parquet.write_table(given, place / "given.parquet")  # which calls parts of lists by other names
    config = config_for(place, input="hf:own/data:train", output=str(place / "out.parquet"))
    run_job(config, Heard(), ScriptedModel(echo).open())
    assert_same(read(place / "out.parquet"), read(place / "given.parquet"))


def test_chosen_columns_and_parts_keep_their_types(place: Path) -> None:
    """`--columns`, a part of an object, a column under its long name, and the first rows alone."""
    given = source(place)
    columns = ("map,object.in.price,input.far,structs.0.price,answer,halffloat",)
    run(place, "out.parquet", columns=columns, limit=2)
    found = read(place / "out.parquet")
    assert found.column_names == [
        *("map", "object.in.price", "input.far", "structs.0.price", "answer", "halffloat")
    ]
    assert_same(found, given.slice(0, 2).select(["map", "halffloat"]))
    far = found.select(["input.far"]).rename_columns(["far"])
    assert stored(far) == stored(given.slice(0, 2).select(["far"]))
    prices = pa.compute.struct_field(given["object"], ["in", "price"]).slice(0, 2)
    assert found["object.in.price"].equals(prices)
    assert found["structs.0.price"].to_pylist() == ["1.50", None]  # an item of a list has no type


@pytest.mark.parametrize("flatten", [False, True])
def test_whole_rows_keep_the_types_of_their_columns(flatten: bool, place: Path) -> None:
    """`--columns all`, whose `input` is an object, and `--flatten`."""
    given = source(place).drop_columns(["prompt"])
    run(place, "out.parquet", columns=() if flatten else ("all",), flatten=flatten)
    found = read(place / "out.parquet")
    if not flatten:
        parts = found["input"].combine_chunks()
        found = pa.Table.from_arrays(parts.flatten(), schema=pa.schema(list(parts.type)))
    assert_same(found, given)


def test_a_dataset_comes_back(place: Path) -> None:
    """A folder of Arrow, with the types that the library has; what Parquet lacks is as in JSON."""
    datasets = pytest.importorskip("datasets")
    given = source(place)
    without = ("decimal32", "decimal64", "view", "json", "uuid", "bool8", "tensor", "map")
    names = [each for each in given.column_names if not any(part in each for part in without)]
    given = given.select(names)
    seconds = pa.array([5, None, 7], pa.timestamp("s"))
    data = datasets.Dataset(given.append_column("seconds", seconds))
    data.save_to_disk(place / "saved")
    run(place, "out.parquet", name="saved")
    found = read(place / "out.parquet")
    saved = datasets.load_from_disk(place / "saved").with_format("arrow")[:]
    parquet.write_table(saved.drop_columns(["seconds"]), place / "saved.parquet")
    assert len(saved.column_names) > 50
    assert_same(found, read(place / "saved.parquet"))
    assert str(found.schema.field("seconds").type) == "timestamp[ms]"  # Parquet has no seconds
    assert found["seconds"].to_pylist() == seconds.to_pylist()


def test_files_with_other_columns_keep_the_types_they_share(place: Path) -> None:
    """A column of two types, one that only a file has, and a file without rows."""
    for name, table in {
        "a": {"prompt": ["a"], "x": [1.5], "n": pa.array([None], pa.null()), "half": [math.nan]},
        "b": {"prompt": ["b"], "x": ["text"], "n": pa.array([7], pa.int8())},
        "c": {"prompt": pa.array([], pa.string()), "x": pa.array([], pa.int8())},
        "d": {"prompt": ["d"], "x": [2.5], "half": [math.inf]},
    }.items():
        parquet.write_table(pa.table(table), place / f"{name}.parquet")
    more = tuple(str(place / f"{name}.parquet") for name in "bcd")
    run(place, "out.parquet", name="a.parquet", more_inputs=more)
    found = read(place / "out.parquet")
    kinds = {each.name: str(each.type) for each in found.schema}
    assert (kinds["x"], kinds["n"], kinds["half"]) == ("string", "int8", "double")
    assert found["x"].to_pylist() == ["1.5", '"text"', "2.5"]
    assert found["n"].to_pylist() == [None, 7, None]
    assert str(found["half"].to_pylist()) == "[nan, None, inf]"


TEXTS = {
    "double": ["NaN", "Infinity", None],
    "far": [2**60, -(2**60), None],
    "time ns": ["00:00:00.000000005", "23:59:59.999999999", None],
    "bad text": ["\ufffd", "ok", None],
    "binary": ["AP+A", "YWJj", None],
    "decimal256": ["100.00", "-0.01", None],
    "vector": [[0.10000000149011612, "NaN"], [1.0, "Infinity"], None],
    "map": [[["a", 1.5], ["a", "NaN"]], [], None],
    "uuid": ["00000000-0000-0000-0000-000000000005", "ffffffff-ffff-ffff-ffff-ffffffffffff", None],
}


def test_json_has_the_documented_texts(place: Path) -> None:
    """Columns of failed rows, too."""
    source(place)
    run(place, "out.jsonl", ordered=True)
    rows = [json.loads(line) for line in (place / "out.jsonl").read_text().splitlines()]
    for name, texts in TEXTS.items():
        assert [row["input"][name] for row in rows] == texts
    assert [row["error"] is None for row in rows] == [True, False, True]


def test_a_csv_is_read_by_pandas_as_the_parquet_file(place: Path) -> None:
    given = source(place)
    run(place, "out.csv")
    found = pandas.read_csv(place / "out.csv")
    for name in ("boolean", "int64", "uint32", "double", "more float", "decimal128"):
        wanted = [math.nan if each is None else float(each) for each in given[name].to_pylist()]
        assert str(found[name].astype(float).tolist()) == str(wanted)
    assert found["string_view"].tolist()[1] == given["string_view"].to_pylist()[1]
    moments = pandas.to_datetime(found["zoned ns"], format="ISO8601", utc=True)
    assert moments.dropna().astype("int64").tolist() == [1, -1234567890123]
    with (place / "out.csv").open(newline="") as file:
        assert [row["vector"] for row in csv.DictReader(file)] == [
            *('[0.10000000149011612,"NaN"]', '[1.0,"Infinity"]', "")
        ]


@pytest.mark.parametrize(
    ("column", "errors"),
    [("bad text", ["invalid_utf8", None, None]), ("double", [None, None, None])],
)
def test_a_column_fails_the_rows_whose_prompt_uses_it(
    column: str, errors: list[str | None], place: Path
) -> None:
    """A template that names the column, one that may read any, and one that reads another."""
    source(place)
    codes = {}
    for number, text in enumerate(
        (f"{{{{ row['{column}'] }}}}", "{{ row | length }}", "{{ int64 }}")
    ):
        prompts = PromptConfig(template=PromptTemplate(text))
        run(place, f"{number}.jsonl", prompts=prompts, ordered=True)
        lines = (place / f"{number}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        codes[number] = [row["error"] and row["error"]["code"] for row in rows]
        assert all("int8" in row["input"] for row in rows)
    assert codes[0] == errors
    assert codes[1] == ["invalid_utf8", None, None]  # one of all columns
    assert codes[2] == [None, None, None]


def test_a_missing_number_is_null_in_a_prompt(place: Path) -> None:
    """NaN as it was for templates before outputs said it."""
    source(place)
    prompts = PromptConfig(template=PromptTemplate("{{ double }} {{ row['more double'] }}"))
    run(place, "out.jsonl", prompts=prompts, ordered=True)
    rows = [json.loads(line) for line in (place / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["None 0.1!", "Infinity -Infinity!", "None -0.0!"]


def test_a_record_that_is_too_long_keeps_its_columns(place: Path) -> None:
    given = pa.table({"id": ["x"], "prompt": ["a"], "x": [math.nan], "long": [b"\x00" * 90_000]})
    parquet.write_table(given, place / "in.parquet")
    run(place, "out.parquet", max_line_bytes=50_000)
    found = read(place / "out.parquet")
    assert_same(found, given)
    assert found["error"].to_pylist()[0].startswith("line_too_long")
    run(place, "out.jsonl", max_line_bytes=50_000)
    row = json.loads((place / "out.jsonl").read_text())
    assert (row["id"], row["input"], row["error"]["line"]) == ("x", {"x": "NaN"}, 1)


def test_metadata_of_a_table_comes_back(place: Path) -> None:
    """A geometry that a library no longer finds."""
    metadata = {b"geo": b"{}", b"huggingface": b'{"info": {}}'}
    table = pa.table({"prompt": ["a"]}).replace_schema_metadata(metadata)
    parquet.write_table(table, place / "in.parquet")
    run(place, "out.parquet")
    assert parquet.read_schema(place / "out.parquet").metadata == metadata


def test_a_disk_that_is_full_is_the_disk_s_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said to be a fault of the input."""

    class Full:
        def write(self, table: object) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    source(place)
    monkeypatch.setattr(pa.ipc, "new_stream", lambda *args, **more: Full())
    with pytest.raises(OutputError, match="columns of the input cannot be kept") as caught:
        run(place, "out.parquet")
    assert caught.value.errno == 28


def test_tables_beyond_memory_are_on_disk(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is left when the process is killed."""
    given = source(place)
    monkeypatch.setattr(kept_tables, "MEMORY_BYTES", 100)
    run(place, "out.parquet", shards=2, window=WindowSize(rows=1))
    assert_same(read(*sorted(place.glob("out-*.parquet"))), given)
    names = {each.name for each in place.iterdir() if "out" not in each.name}
    assert names == {"in.parquet", "in.jsonl", "model"}


@pytest.mark.long
def test_duckdb_reads_outputs_as_it_reads_inputs(place: Path) -> None:
    """Types that are found by another reader: numbers, dates, nulls and empty cells of a CSV, and
    each type of a Parquet file.
    """
    duckdb = pytest.importorskip("duckdb")
    (place / "in.csv").write_text(
        'id,prompt,price,count,when,flag,note\n1,"a, ""b""",1.5,,2020-01-01,true,007\n'
        '2,"two\nlines",,3,,false,\n3,c,-2e3,4,1999-12-31,,x\n'
    )
    run(place, "out.csv", name="in.csv")
    given = source(place)
    run(place, "out.parquet")

    def of(name: str, column: str) -> object:
        query = f'select "{column}", typeof("{column}") from \'{place / name}\''
        try:
            return repr(duckdb.sql(query).fetchall())
        except duckdb.Error as error:
            return str(error).replace(name, "")

    for column in ("id", "prompt", "price", "count", "when", "flag", "note"):
        assert of("out.csv", column) == of("in.csv", column)
    for column in given.column_names:
        assert of("out.parquet", column) == of("in.parquet", column)
