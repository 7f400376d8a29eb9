"""Columns, shards, types of numbers, and recipes of `embed`, `rerank` and `classify`."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from tests.job.pooled.pooled_jobs import read, run, write
from tests.support.arrow_types import every_type, stored
from tests.support.tiny_encoders import texts, write_model

Capsys = pytest.CaptureFixture[str]


def vectors_of(column: pyarrow.ChunkedArray) -> NDArray[Any]:
    held = column.combine_chunks()
    found: NDArray[Any] = held.flatten().to_numpy().reshape(len(held), held.type.list_size)
    return found


def test_columns_are_chosen_as_in_generate(
    model: Path, rows: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = {name: tmp_path / name for name in ("some.parquet", "all.parquet", "some.jsonl", "v.npy")}
    chosen = ("--columns", "id,embedding,input.n")
    run(capsys, "embed", rows, "-o", out["v.npy"], "--model", model)
    run(capsys, "embed", rows, "-o", out["some.parquet"], "--model", model, *chosen)
    run(capsys, "embed", rows, "-o", out["all.parquet"], "--model", model, "--columns", "all")
    run(
        capsys,
        *("embed", rows, "-o", out["some.jsonl"], "--model", model, "--flatten", "--ordered"),
        *("--columns", "n,prompt_tokens,embedding"),
    )
    array, table = np.load(out["v.npy"]), pq.read_table(out["some.parquet"])
    assert table.column_names == ["id", "embedding", "input.n"]
    assert np.array_equal(vectors_of(table["embedding"]), array)
    table = pq.read_table(out["all.parquet"])
    assert table.column_names == ["index", "id", "embedding", "usage", "input", "error"]
    assert np.array_equal(vectors_of(table["embedding"]), array)
    second = read(out["some.jsonl"])[1]
    assert (second["n"], second["prompt_tokens"]) == (1, 22)
    assert np.array_equal(np.array(second["embedding"], np.float32), array[1])


def test_a_column_of_the_input_keeps_its_name(model: Path, tmp_path: Path, capsys: Capsys) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "v.parquet"
    write(rows, [{"text": "w1", "embedding": "mine"}, {"text": "w2", "embedding": None}])
    err = run(capsys, "embed", rows, "-o", out, "--model", model)
    assert "the one of the results is called output_embedding" in err
    table = pq.read_table(out)
    assert table.column_names == ["text", "embedding", "output_embedding", "error"]
    assert table["embedding"].to_pylist() == ["mine", None]
    assert vectors_of(table["output_embedding"]).shape == (2, 64)


@pytest.mark.parametrize("ending", ["npy", "parquet", "jsonl"])
def test_shards_hold_the_rows_in_order(
    ending: str, model: Path, rows: Path, tmp_path: Path, capsys: Capsys
) -> None:
    run(capsys, "embed", rows, "-o", tmp_path / "v.npy", "--model", model)
    run(capsys, "embed", rows, "-o", tmp_path / f"s.{ending}", "--model", model, "--shards", 4)
    files = sorted(tmp_path.glob(f"s-0*.{ending}"))
    assert len(files) == 4
    if ending == "npy":
        parts = [np.load(each) for each in files]
    elif ending == "parquet":
        parts = [vectors_of(pq.read_table(each)["embedding"]) for each in files]
    else:
        parts = [np.array([row["embedding"] for row in read(each)], np.float32) for each in files]
    assert [len(each) for each in parts] == [2, 2, 1, 1]
    assert np.array_equal(np.concatenate(parts), np.load(tmp_path / "v.npy"))
    run(
        capsys,
        *("embed", rows, "-o", tmp_path / f"s.{ending}", "--model", model, "--shards", 4),
        "--resume",
    )


def test_failed_rows_of_shards_are_tried_again(
    model: Path, rows: Path, tmp_path: Path, capsys: Capsys
) -> None:
    with rows.open("a") as file:
        file.write('{"id": "none"}\n')
    job = ("embed", rows, "-o", tmp_path / "s.npy", "--model", model, "--shards", 2)
    run(capsys, *job, status=3)
    files = sorted(tmp_path.glob("s-0*.npy"))
    before = [each.read_bytes() for each in files]
    run(capsys, *job, "--resume", "--retry-errors", status=3)
    assert [each.read_bytes() for each in files] == before
    assert np.isnan(np.load(files[1])[-1]).all()


def test_row_groups_hold_their_own_vectors(
    model: Path, rows: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagedrun.paged.job.output.table_files.GROUP_ROWS", 4)
    run(capsys, "embed", rows, "-o", tmp_path / "v.npy", "--model", model)
    run(capsys, "embed", rows, "-o", tmp_path / "v.parquet", "--model", model)
    file = pq.ParquetFile(tmp_path / "v.parquet")
    groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert groups == [4, 2]
    assert np.array_equal(vectors_of(file.read()["embedding"]), np.load(tmp_path / "v.npy"))


def test_float16_takes_half_the_room(
    model: Path, rows: Path, tmp_path: Path, capsys: Capsys
) -> None:
    with rows.open("a") as file:
        file.write('{"id": "none"}\n')
    run(capsys, "embed", rows, "-o", tmp_path / "v.npy", "--model", model, status=3)
    exact = np.load(tmp_path / "v.npy")
    half = ("--vector-type", "float16")
    run(capsys, "embed", rows, "-o", tmp_path / "h.npy", "--model", model, *half, status=3)
    array = np.load(tmp_path / "h.npy")
    assert array.dtype == np.float16
    assert np.array_equal(array, exact.astype(np.float16), equal_nan=True)
    run(capsys, "embed", rows, "-o", tmp_path / "h.parquet", "--model", model, *half, status=3)
    table = pq.read_table(tmp_path / "h.parquet")
    assert table.schema.field("embedding").type == pyarrow.list_(pyarrow.float16(), 64)
    assert table["embedding"].null_count == 1
    assert np.array_equal(vectors_of(table["embedding"].slice(0, 6)), array[:6])


def test_int8_has_a_scale_for_each_vector(
    model: Path, rows: Path, tmp_path: Path, capsys: Capsys
) -> None:
    with rows.open("a") as file:
        file.write('{"id": "none"}\n')
    run(capsys, "embed", rows, "-o", tmp_path / "v.npy", "--model", model, status=3)
    exact, out = np.load(tmp_path / "v.npy")[:6], tmp_path / "i.parquet"
    run(capsys, "embed", rows, "-o", out, "--model", model, "--vector-type", "int8", status=3)
    table = pq.read_table(out)
    names = ["id", "text", "n", "embedding", "embedding_scale", "error"]
    assert table.column_names == names
    assert table.schema.field("embedding").type == pyarrow.list_(pyarrow.int8(), 64)
    assert table["embedding_scale"].null_count == table["embedding"].null_count == 1
    numbers = vectors_of(table["embedding"].slice(0, 6)).astype(np.float32)
    scales = table["embedding_scale"].to_numpy()[:6, None]
    assert np.abs(numbers).max(axis=1).tolist() == [127] * 6
    assert (np.abs(numbers * scales - exact) <= scales / 2 + 1e-7).all()


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("v.jsonl", ("--vector-type", "float16"), "let the name of the output end in .parquet or"),
        ("v.npy", ("--vector-type", "int8"), "--vector-type int8: .npy has no such numbers"),
        ("v.npy", ("--columns", "id"), "--columns: an array holds vectors alone"),
        ("v.npy", ("--flatten",), "--flatten: an array holds vectors alone"),
        ("v.parquet", ("--columns", "embedding.0"), "embedding.0 is one number of a vector"),
        ("v.jsonl", ("--columns", "nn"), "there is no column nn; did you mean n?"),
        ("v.jsonl", ("--columns", "text.a,usage.cached_tokens"), "usage has no cached_tokens"),
        ("v.csv", (), ".csv is no output of pagedrun embed"),
    ],
)
def test_what_an_output_cannot_have_is_refused(
    name: str,
    flags: tuple[str, ...],
    message: str,
    model: Path,
    rows: Path,
    tmp_path: Path,
    capsys: Capsys,
) -> None:
    out = tmp_path / name
    err = run(capsys, "embed", rows, "-o", out, "--model", model, *flags, status=2)
    assert message in err
    assert not out.exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--push-model", "a folder of sentence-transformers has folders of its own"),
        ("--html=x.html", "the page shows the KV memory of answers"),
        ("--from=old.jsonl", "no results of another output are reused"),
        ("--temperature=1", "it is about the answers of pagedrun generate"),
    ],
)
def test_a_flag_of_generate_alone_is_refused_by_a_sentence(
    flag: str, message: str, model: Path, rows: Path, tmp_path: Path, capsys: Capsys
) -> None:
    err = run(capsys, "embed", rows, "-o", tmp_path / "v.npy", "--model", model, flag, status=2)
    assert f"{flag.split('=')[0]} is no flag of pagedrun embed: {message}" in err


def test_a_recipe_has_the_flags_of_its_command(
    model: Path, rows: Path, tmp_path: Path, capsys: Capsys
) -> None:
    recipe, out = tmp_path / "r.yaml", tmp_path / "v.npy"
    recipe.write_text(f"model: {model}\npooling: cls\nnormalize: false\n")
    run(capsys, "embed", rows, "-o", out, "--recipe", recipe)
    by_flags = tmp_path / "flags.npy"
    run(
        capsys,
        *("embed", rows, "-o", by_flags, "--model", model, "--pooling", "cls", "--no-normalize"),
    )
    assert out.read_bytes() == by_flags.read_bytes()
    recipe.write_text(f"model: {model}\ntemperature: 1\n")
    other = tmp_path / "other.npy"
    err = run(capsys, "embed", rows, "-o", other, "--recipe", recipe, status=2)
    assert "temperature in" in err
    assert "line 2: no such setting; see --help of the command" in err


def test_labels_in_chosen_columns(tmp_path: Path, capsys: Capsys) -> None:
    folder = tmp_path / "classifier"
    write_model(folder, "bert", "ForSequenceClassification", num_labels=3)
    rows, out = tmp_path / "rows.jsonl", tmp_path / "l.csv"
    write(rows, [{"id": i, "text": each} for i, each in enumerate(texts([3, 4]))])
    run(
        capsys,
        *("classify", rows, "-o", out, "--model", folder),
        *("--columns", "id,label,scores.LABEL_1"),
    )
    with out.open() as file:
        (first, _) = csv.DictReader(file)
    assert list(first) == ["id", "label", "scores.LABEL_1"]
    assert 0 < float(first["scores.LABEL_1"]) < 1


def test_batch_rows_have_one_vector_in_a_table(model: Path, tmp_path: Path, capsys: Capsys) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "v.npy"
    bodies = [{"input": "w1 w2", "model": "m"}, {"input": ["w1", "w2"], "model": "m"}, {}]
    call = {"method": "POST", "url": "/v1/embeddings"}
    write(rows, [{"custom_id": f"c{i}", **call, "body": each} for i, each in enumerate(bodies)])
    run(capsys, "embed", rows, "-o", out, "--model", model, status=3)
    assert np.isnan(np.load(out)).all(axis=1).tolist() == [False, True, True]
    errors = read(Path(f"{out}.errors.jsonl"))
    assert [(each["id"], each["error"]["code"]) for each in errors] == [
        ("c1", "too_many_inputs"),
        ("c2", "missing_prompt"),
    ]


def test_columns_of_a_parquet_file_come_back_beside_vectors(
    model: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """Infinity and types that JSON lacks, of a row that has no text."""
    given = every_type().append_column("text", pyarrow.array(["a", None, "c"]))
    pq.write_table(given, tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    run(capsys, "embed", tmp_path / "in.parquet", "-o", out, "--model", model, status=3)
    found = pq.read_table(out)
    assert found.column_names == [*given.column_names, "embedding", "error"]
    assert stored(found.select(given.column_names)) == stored(
        pq.read_table(tmp_path / "in.parquet")
    )
    assert found["embedding"].null_count == 1
