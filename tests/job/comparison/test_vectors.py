"""`pagedrun diff` of vectors: cosines between outputs of any format."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest

from tests.support.command import run_command

Capsys = pytest.CaptureFixture[str]
VECTORS = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)


def lines(vectors: Any, failed: tuple[int, ...] = (), first: int = 0) -> bytes:
    rows: list[dict[str, Any]] = []
    for index, vector in enumerate(vectors):
        row = {"index": index, "id": f"t{index + first}", "embedding": vector.tolist()}
        error = {"code": "empty_prompt", "message": "", "param": None, "line": 1}
        if index in failed:
            row["embedding"] = None
        rows.append(row | {"input": {}, "error": error if index in failed else None})
    return b"".join(json.dumps(each).encode() + b"\n" for each in rows)


def table(vectors: Any, failed: tuple[int, ...] = (), scales: Any = None) -> pyarrow.Table:
    mask = pyarrow.array([index in failed for index in range(len(vectors))])
    kind = pyarrow.list_(pyarrow.from_numpy_dtype(vectors.dtype), vectors.shape[1])
    numbers = pyarrow.array(vectors.reshape(-1))
    column = pyarrow.FixedSizeListArray.from_arrays(numbers, type=kind, mask=mask)
    columns = {"id": [f"t{index}" for index in range(len(vectors))], "embedding": column}
    return pyarrow.table(columns if scales is None else columns | {"embedding_scale": scales})


def diff(
    capsys: Capsys, a: Path, b: Path, *flags: object, status: int = 0
) -> tuple[dict[str, Any], str]:
    found, out, err = run_command(capsys, "diff", a, b, "--json", *flags)
    assert found == status, err
    return json.loads(out) if out else {}, " ".join(err.split())


def test_formats_with_the_same_vectors_are_the_same(tmp_path: Path, capsys: Capsys) -> None:
    paths = [tmp_path / name for name in ("a.jsonl", "a.jsonl.gz", "a.npy", "a.parquet")]
    array = VECTORS.copy()
    array[2] = np.nan
    paths[0].write_bytes(lines(VECTORS, (2,)))
    paths[1].write_bytes(gzip.compress(b"".join(reversed(lines(VECTORS, (2,)).splitlines(True)))))
    np.save(paths[2], array)
    pq.write_table(table(VECTORS, (2,)), paths[3], row_group_size=2)
    for a in paths:
        for b in paths:
            found, err = diff(capsys, a, b)
            assert (found["compared"], found["equal"], found["min_cosine"]) == (5, 5, 1.0)
            assert (found["failed_in_both"], found["same"]) == (1, True)
            by_index = paths[2] in (a, b)
            assert found["matched_by"] == ("index" if by_index else "id")
            assert "5 vectors compared, 5 with the same numbers" in err
            assert "1 failed in both" in err


def test_rows_below_the_threshold_are_the_lowest_first(tmp_path: Path, capsys: Capsys) -> None:
    other = VECTORS.copy()
    other[1] = -other[1]
    other[4] += 0.3 * other[0]
    other[5] *= 2  # the same direction
    a, b = tmp_path / "a.jsonl", tmp_path / "b.npy"
    a.write_bytes(lines(VECTORS))
    np.save(b, other)
    found, err = diff(capsys, a, b, status=1)
    assert (found["below"], found["equal"], found["same"]) == (2, 3, False)
    assert [each["b"] for each in found["lowest"]] == [1, 4]
    assert found["lowest"][0]["cosine"] == pytest.approx(-1)
    expected = [
        float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
        for x, y in zip(VECTORS.astype(np.float64), other.astype(np.float64), strict=True)
    ]
    assert found["mean_cosine"] == pytest.approx(np.mean(expected))
    assert found["min_cosine"] == pytest.approx(min(expected))
    assert "row 1: cosine -1.000000" in err
    found, err = diff(capsys, a, b, "--show", 1, status=1)
    assert len(found["lowest"]) == 1
    assert "and 1 more below; --show 2 shows all" in err
    assert diff(capsys, a, b, "--min-cosine", -1)[0]["same"]


def test_missing_and_failed_rows_are_counted(tmp_path: Path, capsys: Capsys) -> None:
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    a.write_bytes(lines(VECTORS, failed=(3,)))
    b.write_bytes(lines(VECTORS[1:], failed=(0, 4), first=1) + lines(VECTORS[:1], first=9)[:-1])
    found, err = diff(capsys, a, b, status=1)
    assert (found["compared"], found["matched_by"]) == (2, "id")
    assert (found["failed_in_a"], found["failed_in_b"]) == (1, 2)
    assert (found["missing"], found["added"]) == (1, 0)
    assert found["b"]["torn"]
    assert "1 failed in A alone, 2 failed in B alone, 1 only in A" in err


def test_int8_vectors_are_multiplied_by_their_scales(tmp_path: Path, capsys: Capsys) -> None:
    scales = np.abs(VECTORS).max(axis=1) / 127
    packed = np.rint(VECTORS / scales[:, None]).astype(np.int8)
    a, b = tmp_path / "a.npy", tmp_path / "b.parquet"
    np.save(a, VECTORS.astype(np.float16))
    pq.write_table(table(packed, (), scales.astype(np.float32)), b)
    found, _ = diff(capsys, a, b, "--min-cosine", 0.999)
    assert found["compared"] == 6
    assert 0.999 < found["min_cosine"] < 1


def test_the_same_integers_of_other_scales_are_other_numbers(
    tmp_path: Path, capsys: Capsys
) -> None:
    numbers = (VECTORS * 20).astype(np.int8)
    a, b = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for path, scale in ((a, 0.5), (b, 0.25)):
        pq.write_table(table(numbers, scales=np.full(len(numbers), scale, np.float32)), path)
    found, _ = diff(capsys, a, b)
    assert (found["compared"], found["equal"]) == (len(numbers), 0)
    assert found["min_cosine"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.jsonl", lines(VECTORS[:, :4]), "have 8 numbers and those of"),
        ("b.jsonl", b'{"index": 0, "id": "a", "text": "x", "error": null}\n', "line 1 is no row"),
        ("b.jsonl", lines(VECTORS[:1]) * 2, "has row 0 twice"),
        ("b.jsonl", lines(VECTORS).replace(b"[", b'["x", '), "line 1 is no row with a vector"),
        ("b.npy", b"no array", "cannot be read"),
        ("b.parquet", b"no table", "cannot be read"),
        ("b.jsonl.gz", b"not packed", "cannot be read"),
        ("b.npy", None, "cannot be read (No such file or directory)"),
    ],
)
def test_what_has_no_vectors_is_refused(
    name: str, content: bytes | None, message: str, tmp_path: Path, capsys: Capsys
) -> None:
    a, b = tmp_path / "a.npy", tmp_path / name
    np.save(a, VECTORS)
    if content is not None:
        b.write_bytes(content)
    _, err = diff(capsys, a, b, status=2)
    assert message in err


def test_a_table_without_vectors_is_refused(tmp_path: Path, capsys: Capsys) -> None:
    a, b = tmp_path / "a.npy", tmp_path / "b.parquet"
    np.save(a, VECTORS)
    pq.write_table(pyarrow.table({"id": ["a"], "embedding": ["mine"]}), b)
    assert "has no column embedding of vectors" in diff(capsys, a, b, status=2)[1]
    np.save(a, VECTORS[0])
    assert "is no array of vectors" in diff(capsys, a, b, status=2)[1]


def test_a_threshold_is_for_vectors(tmp_path: Path, capsys: Capsys) -> None:
    a = tmp_path / "a.jsonl"
    a.write_text('{"index": 0, "id": "a", "text": "x", "outputs": [], "error": null}\n')
    _, err = diff(capsys, a, a, "--min-cosine", 0.9, status=2)
    assert "neither file has vectors" in err
