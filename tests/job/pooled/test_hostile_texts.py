"""Hostile texts: an error row each, or the vector that the pages describe."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.job.pooled.pooled_jobs import read, run
from tests.support.tiny_encoders import write_model

Capsys = pytest.CaptureFixture[str]
KINDS = ["bert", "qwen3"]  # an encoder with special tokens, and a causal model without
GOOD = b'{"id": "good", "text": "w1 w2"}\n'


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, folder in folders.items():
        write_model(folder, kind)
    return folders


def embed(
    model: Path, lines: bytes, folder: Path, capsys: Capsys, *flags: object, status: int = 0
) -> tuple[Any, dict[Any, str]]:
    """Return the array of the rows, between two good ones, and the codes of errors by id."""
    rows, out = folder / "rows.jsonl", folder / "v.npy"
    rows.write_bytes(GOOD + lines + GOOD.replace(b"good", b"last"))
    run(
        capsys,
        *("embed", rows, "-o", out, "--overwrite", "--model", model, *flags),
        status=status,
    )
    errors = Path(f"{out}.errors.jsonl")
    found = {each["id"]: each["error"]["code"] for each in read(errors)} if errors.exists() else {}
    array = np.load(out)
    assert np.array_equal(array[0], array[-1]), "rows beside it are as they would be alone"
    return array, found


def line(text: str) -> bytes:
    return json.dumps({"id": "bad", "text": text}).encode() + b"\n"


def test_empty(models: dict[str, Path], tmp_path: Path, capsys: Capsys) -> None:
    """The special tokens of an encoder have a vector; without any the row has no tokens."""
    array, errors = embed(models["bert"], line(""), tmp_path, capsys)
    assert errors == {}
    ids = json.dumps({"id": "bad", "prompt_token_ids": [2, 3]}).encode() + b"\n"
    assert np.array_equal(array, embed(models["bert"], ids, tmp_path, capsys)[0])
    array, errors = embed(models["qwen3"], line(""), tmp_path, capsys, status=3)
    assert errors == {"bad": "empty_prompt"}
    assert np.isnan(array[1]).all()
    _, errors = embed(models["qwen3"], line(" \n\t"), tmp_path, capsys, status=3)
    assert errors == {"bad": "empty_prompt"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("megabytes", [1, pytest.param(10, marks=pytest.mark.long)])
def test_a_huge_text(
    megabytes: int, kind: str, models: dict[str, Path], tmp_path: Path, capsys: Capsys
) -> None:
    huge = "w1 w2 w3 w4 " * (megabytes * 2**20 // 12)
    _, errors = embed(models[kind], line(huge), tmp_path, capsys, status=3)
    assert errors == {"bad": "prompt_too_long"}
    cut = ("--on-overlong", "truncate-right")
    array, errors = embed(models[kind], line(huge), tmp_path, capsys, *cut)
    assert errors == {}
    short, _ = embed(models[kind], line(huge[: 12 * 200]), tmp_path, capsys, *cut)
    assert np.array_equal(array, short)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", [b"\xff\xfe", b"w1 \xc3(", b"\xed\xa0\x80", b"\\ud800 w1"], ids=ascii
)
def test_invalid_utf8(
    text: bytes, kind: str, models: dict[str, Path], tmp_path: Path, capsys: Capsys
) -> None:
    given = b'{"id": "bad", "text": "' + text + b'"}\n'
    array, errors = embed(models[kind], given, tmp_path, capsys, status=3)
    assert len(errors) == 1
    assert set(errors.values()) <= {"invalid_json", "invalid_utf8", "invalid_unicode"}
    assert np.isnan(array[1]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_only_special_tokens(
    kind: str, models: dict[str, Path], tmp_path: Path, capsys: Capsys
) -> None:
    """The names of special tokens in a text are these tokens, as in Transformers."""
    array, errors = embed(models[kind], line("[PAD] [UNK]"), tmp_path, capsys)
    assert errors == {}
    ids = [2, 0, 1, 3] if kind == "bert" else [0, 1]
    given = json.dumps({"id": "bad", "prompt_token_ids": ids}).encode() + b"\n"
    assert np.array_equal(array, embed(models[kind], given, tmp_path, capsys)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("7", "unsupported_content"),
        ("null", "missing_prompt"),
        ('["w1"]', "unsupported_content"),
        ('{"text": 5}', "unsupported_content"),
    ],
)
def test_no_text(
    value: str, code: str, kind: str, models: dict[str, Path], tmp_path: Path, capsys: Capsys
) -> None:
    given = f'{{"id": "bad", "text": {value}}}\n'.encode()
    _, errors = embed(models[kind], given, tmp_path, capsys, status=3)
    assert errors == {"bad": code}
