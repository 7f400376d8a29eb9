"""Jobs of `embed`, `rerank` and `classify`: formats, resume, errors, long texts."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.job.pooled.pooled_jobs import read, run
from tests.support.tiny_encoders import texts, write_model, write_modules


def test_all_formats_have_the_same_vectors(
    model: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("v.jsonl", "v.jsonl.gz", "v.npy", "v.parquet"):
        run(capsys, "embed", rows, "-o", tmp_path / name, "--model", model)
    lines, array = read(tmp_path / "v.jsonl"), np.load(tmp_path / "v.npy")
    table = pq.read_table(tmp_path / "v.parquet")
    assert array.shape == (6, 64)
    assert array.dtype == np.float32
    assert table.column_names == ["id", "text", "n", "embedding", "error"]
    assert table.schema.field("embedding").type.list_size == 64
    held = table["embedding"].combine_chunks().flatten().to_numpy().reshape(6, 64)
    assert np.array_equal(held, array)
    assert [each["id"] for each in lines] == [f"t{i}" for i in range(6)]
    assert list(lines[0]) == ["index", "id", "embedding", "usage", "input", "error"]
    for each in lines:
        assert np.array_equal(np.array(each["embedding"], np.float32), array[each["index"]])
        assert abs(np.linalg.norm(each["embedding"]) - 1) < 1e-6
    assert lines[1]["input"] == {"n": 1}
    assert lines[1]["usage"] == {"prompt_tokens": 22, "truncated_tokens": 0}
    left = sorted(path.name for path in tmp_path.iterdir() if "vectors" in path.name)
    assert left == []


def test_a_failed_row_is_nan_with_its_error_beside(
    model: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rows.open("a") as file:
        file.write(json.dumps({"id": "none"}) + "\n" + json.dumps({"text": "w1 " * 999}) + "\n")
    out = tmp_path / "v.npy"
    run(capsys, "embed", rows, "-o", out, "--model", model, status=3)
    array = np.load(out)
    assert np.isnan(array[6:]).all()
    assert not np.isnan(array[:6]).any()
    errors = read(tmp_path / "v.npy.errors.jsonl")
    assert [(each["index"], each["error"]["code"]) for each in errors] == [
        (6, "missing_prompt"),
        (7, "prompt_too_long"),
    ]
    table = tmp_path / "v.parquet"
    run(capsys, "embed", rows, "-o", table, "--model", model, status=3)
    found = pq.read_table(table).to_pylist()
    assert found[6]["embedding"] is None
    assert found[6]["error"].startswith("missing_prompt: ")


@pytest.mark.parametrize("name", ["v.npy", "v.parquet", "v.jsonl"])
def test_a_stopped_run_is_resumed_with_the_same_bytes(
    name: str, model: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / f"whole-{name}"
    run(capsys, "embed", rows, "-o", whole, "--model", model, "--ordered")
    out = tmp_path / name
    steps = iter(range(3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pagedrun.paged.execution.pooling.flat_pass.FlatPass.__call__",
            _failing(steps),
        )
        run(
            capsys,
            *("embed", rows, "-o", out, "--model", model, "--max-num-batched-tokens", 1),
            status=1,
        )
    journal = out if name.endswith("jsonl") else Path(f"{out}.journal.jsonl")
    assert 0 < len(read(journal)) < 6
    run(capsys, "embed", rows, "-o", out, "--model", model, "--resume", "--ordered")
    assert out.read_bytes() == whole.read_bytes()
    run(capsys, "embed", rows, "-o", out, "--model", model, "--resume", "--ordered")


def _failing(steps: Iterator[int]) -> Any:
    from pagedrun.paged.execution.pooling.flat_pass import FlatPass

    compute = FlatPass.__call__

    def call(self: FlatPass, texts: Any) -> Any:
        if next(steps, None) is None:
            raise RuntimeError("the power went off")
        return compute(self, texts)

    return call


def test_failed_rows_of_an_array_are_tried_again(
    model: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rows.open("a") as file:
        file.write(json.dumps({"id": "long", "text": "w1 " * 999}) + "\n")
    out, resumed = tmp_path / "v.npy", ("--resume", "--retry-errors")
    run(capsys, "embed", rows, "-o", out, "--model", model, status=3)
    first = np.load(out)
    err = run(
        capsys,
        *("embed", rows, "-o", out, "--model", model, *resumed),
        *("--on-overlong", "truncate-right"),
        status=2,
    )
    assert "--on-overlong" in err
    run(capsys, "embed", rows, "-o", out, "--model", model, *resumed, status=3)
    assert np.array_equal(np.load(out), first, equal_nan=True)


def test_long_texts_are_cut_or_averaged(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (long,) = texts([700])
    parts = [" ".join(long.split()[start : start + 298]) for start in (0, 298, 596)]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": each}) + "\n" for each in (long, *parts)))
    cut, mean = tmp_path / "cut.npy", tmp_path / "mean.npy"
    run(
        capsys,
        *("embed", rows, "-o", cut, "--model", model, "--on-overlong", "truncate-right"),
        "--no-normalize",
    )
    found = np.load(cut)
    assert np.array_equal(found[0], found[1])
    run(capsys, "embed", rows, "-o", mean, "--model", model, "--chunks", "mean", "--no-normalize")
    found = np.load(mean)
    weights = np.array([300, 300, 106], np.float64)
    expected = (found[1:].astype(np.float64) * weights[:, None]).sum(0) / weights.sum()
    assert np.abs(found[0] - expected).max() < 1e-6


def test_prompts_of_the_folder_begin_texts(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = {"prompts": {"query": "w5 w6 "}, "default_prompt_name": None}
    (model / "config_sentence_transformers.json").write_text(json.dumps(beside))
    rows = tmp_path / "rows.txt"
    rows.write_text("w1 w2\nw5 w6 w1 w2\n")
    out = tmp_path / "v.npy"
    run(capsys, "embed", rows, "-o", out, "--model", model)
    plain = np.load(out)
    run(capsys, "embed", rows, "-o", out, "--overwrite", "--model", model, "--prompt-name", "query")
    assert np.array_equal(np.load(out)[0], plain[1])
    other = tmp_path / "other.npy"
    err = run(
        capsys, "embed", rows, "-o", other, "--model", model, "--prompt-name", "other", status=2
    )
    assert "has no prompt of this name; it has query" in err
    (model / "config_sentence_transformers.json").unlink()


def test_openai_rows_get_openai_answers(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [
        {"input": "w1 w2", "model": "m"},
        {"input": ["w1 w2", "w3"], "model": "m", "encoding_format": "float"},
        {"input": "w1", "model": "m", "encoding_format": "base64"},
    ]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(
            json.dumps(
                {"custom_id": f"c{i}", "method": "POST", "url": "/v1/embeddings", "body": each}
            )
            + "\n"
            for i, each in enumerate(calls)
        )
    )
    out = tmp_path / "v.jsonl"
    run(capsys, "embed", rows, "-o", out, "--ordered", "--model", model, status=3)
    first, second, third = read(out)
    body = second["response"]["body"]
    assert [each["index"] for each in body["data"]] == [0, 1]
    assert body["data"][0] == first["response"]["body"]["data"][0]
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert third["response"]["status_code"] == 400


def test_documents_come_best_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "reranker"
    write_model(folder, "bert", "ForSequenceClassification", num_labels=1)
    query, *documents = texts([5, 10, 20, 30])
    rows, out = tmp_path / "rows.jsonl", tmp_path / "r.jsonl"
    asked = [{"query": query, "documents": documents}, {"query": query, "document": documents[1]}]
    rows.write_text("".join(json.dumps(each) + "\n" for each in asked))
    run(capsys, "rerank", rows, "-o", out, "--ordered", "--model", folder, "--top-n", 2)
    first, second = read(out)
    scores = [each["score"] for each in first["results"]]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    by_index = {each["index"]: each["score"] for each in first["results"]}
    if 1 in by_index:
        assert second["results"] == [{"index": 0, "score": by_index[1]}]
    assert first["input"] == {}


def test_a_bad_document_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a hundred documents one was too long, and nobody could say which."""
    folder = tmp_path / "reranker"
    write_model(folder, "bert", "ForSequenceClassification", num_labels=1)
    long, rows, out = "w1 " * 10_000, tmp_path / "rows.jsonl", tmp_path / "r.jsonl"
    mid = "w1 " * 600
    asked = [
        {"query": "w1", "documents": ["w2", "w3", long]},
        {"query": "w1", "documents": ["w2", mid, mid]},
        {"query": "w1", "document": mid},
        {"query": "w1", "documents": ["w2"], "document": "w3"},
        {"query": "w1", "documents": ["w2"]},
    ]
    rows.write_text("".join(json.dumps(each) + "\n" for each in asked))
    run(capsys, "rerank", rows, "-o", out, "--ordered", "--model", folder, status=3)
    *errors, last = [each["error"] for each in read(out)]
    assert [each["code"] for each in errors] == [*["prompt_too_long"] * 3, "invalid_param"]
    assert errors[0]["message"].startswith("at index 2: the text has ")
    assert errors[1]["message"].startswith("at index 1: the text has 604 tokens")
    assert errors[2]["message"].startswith("the text has 604 tokens")
    assert "not both" in errors[3]["message"]
    assert last is None


def test_a_causal_reranker_shares_queries_or_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "reranker"
    known = {"tie_word_embeddings": True, "is_original_qwen3_reranker": True}
    write_model(folder, "qwen3", "ForCausalLM", **known)
    documents = texts([120, 130, 140], seed=2)
    queries = texts([4, 5, 6, 7], seed=3)
    rows = tmp_path / "rows.jsonl"
    asked = [{"query": each, "documents": documents} for each in queries]
    rows.write_text("".join(json.dumps(each) + "\n" for each in asked))
    computed, scores = {}, {}
    for order in ("query", "document"):
        out = tmp_path / f"{order}.jsonl"
        run(
            capsys,
            *("rerank", rows, "-o", out, "--ordered", "--model", folder),
            *("--pair-order", order),
        )
        report = json.loads(Path(f"{out}.report.json").read_text())
        computed[order] = report["tokens"]["computed"]
        scores[order] = [each["results"] for each in read(out)]
    assert computed["document"] < 0.5 * computed["query"]
    rows.write_text(json.dumps(asked[2]) + "\n")
    out = tmp_path / "alone.jsonl"
    run(capsys, "rerank", rows, "-o", out, "--model", folder, "--pair-order", "document")
    assert read(out)[0]["results"] == scores["document"][2]


def test_labels_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "classifier"
    names = {0: "good", 1: "bad", 2: "fair"}
    write_model(folder, "bert", "ForSequenceClassification", id2label=names)
    rows = tmp_path / "rows.csv"
    rows.write_text("review,n\n" + "".join(f"{each},{i}\n" for i, each in enumerate(texts([3, 4]))))
    for ending in ("jsonl", "csv", "parquet"):
        run(
            capsys,
            *("classify", rows, "-o", tmp_path / f"l.{ending}", "--model", folder),
            *("--prompt-field", "review"),
        )
    first = read(tmp_path / "l.jsonl")[0]
    assert sum(first["scores"].values()) == pytest.approx(1, abs=1e-6)
    assert first["label"] == max(first["scores"], key=first["scores"].__getitem__)
    with (tmp_path / "l.csv").open() as file:
        (line, _) = csv.DictReader(file)
    assert list(line) == ["review", "n", "label", "scores", "error"]
    assert line["label"] == first["label"]
    found = pq.read_table(tmp_path / "l.parquet").to_pylist()[0]
    assert found["label"] == first["label"]
    assert found["scores"] == pytest.approx(first["scores"])


@pytest.mark.parametrize(
    ("command", "family", "kind", "message"),
    [
        ("generate", "bert", "Model", "an encoder, which generates no text; use pagedrun embed"),
        ("rerank", "bert", "Model", "has no head that scores pairs"),
        ("classify", "qwen3", "ForCausalLM", "has no head that scores labels"),
        ("embed", "bert", "ForSequenceClassification", "gives scores; use pagedrun classify"),
    ],
)
def test_a_model_without_such_results_is_refused(
    command: str,
    family: str,
    kind: str,
    message: str,
    rows: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_model(tmp_path / "model", family, kind)
    if command == "generate":
        rows.write_text('{"prompt": "w1"}')
    elif command == "rerank":
        rows.write_text('{"query": "w1", "documents": ["w2"]}')
    out = tmp_path / "out.jsonl"
    err = run(capsys, command, rows, "-o", out, "--model", tmp_path / "model", status=2)
    assert message in err
    assert not out.exists()


def test_modules_that_are_not_supported_are_named(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "model", "bert")
    write_modules(tmp_path / "model", {"pooling_mode": "cls"}, "CNN")
    err = run(capsys, "embed", rows, "--model", tmp_path / "model", status=2)
    assert "a module CNN at place 2 is not supported" in err


def test_an_array_is_no_output_of_answers(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = run(capsys, "generate", rows, "-o", tmp_path / "a.npy", "--model", "demo", status=2)
    assert "an array holds vectors" in err


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_a_file_without_any_vector_is_written(
    ending: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / f"v.{ending}"
    rows.write_text(json.dumps({"id": "long", "text": "w1 " * 999}) + "\n")
    run(capsys, "embed", rows, "-o", out, "--model", model, status=3)
    if ending == "npy":
        assert len(np.load(out)) == 1
    else:
        assert pq.read_table(out)["embedding"].to_pylist() == [None]
