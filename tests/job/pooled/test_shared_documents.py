"""Queries over common documents, document first: a document is computed once for all of them."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.job.pooled.pooled_jobs import read, run, write
from tests.support.tiny_encoders import texts, write_model

Capsys = pytest.CaptureFixture[str]
MOST = 1 / 5  # of the tokens of the pairs


def rank(rows: list[dict[str, Any]], folder: Path, capsys: Capsys) -> tuple[list[Any], Any]:
    """Return the results of rows, and the tokens of the report."""
    path, out = folder / "rows.jsonl", folder / "ranked.jsonl"
    write(path, rows)
    run(
        capsys,
        *("rerank", path, "-o", out, "--ordered", "--overwrite", "--model", folder / "model"),
        *("--pair-order", "document", "--quiet"),
    )
    report = json.loads(Path(f"{out}.report.json").read_text())
    return [each["results"] for each in read(out)], report["tokens"]


def check_sharing(num_queries: int, num_documents: int, folder: Path, capsys: Capsys) -> None:
    known = {"max_position_embeddings": 1024, "is_original_qwen3_reranker": True}
    write_model(folder / "model", "qwen3", "ForCausalLM", **known)
    rng = random.Random(5)
    documents = texts([rng.randrange(300, 500) for _ in range(num_documents)], seed=2)
    queries = texts([rng.randrange(4, 12) for _ in range(num_queries)], seed=3)
    rows = [{"query": each, "documents": documents} for each in queries]
    results, tokens = rank(rows, folder, capsys)
    share = tokens["computed"] / tokens["prompt"]
    print(f"{num_queries} x {num_documents}: {share:.3f} of {tokens['prompt']:,} tokens")
    assert share <= MOST
    for index in rng.sample(range(num_queries), 3):
        alone, _ = rank([rows[index]], folder, capsys)
        assert alone == [results[index]]
    place = rng.randrange(num_documents)
    pair = {"query": queries[0], "document": documents[place]}
    alone, _ = rank([pair], folder, capsys)
    scores = {each["index"]: each["score"] for each in results[0]}
    assert alone == [[{"index": 0, "score": scores[place]}]]


def test_computed_tokens_of_common_documents(tmp_path: Path, capsys: Capsys) -> None:
    check_sharing(16, 4, tmp_path, capsys)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_queries_over_fifty_documents(tmp_path: Path, capsys: Capsys) -> None:
    check_sharing(100, 50, tmp_path, capsys)
