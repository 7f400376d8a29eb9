"""Small files of a model folder that are huge, or never end: inputs 25 and 27."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
NAMES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(40 * 2**30)


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes")
@pytest.mark.parametrize("make", [_sparse, _folder, _pipe, _device])
@pytest.mark.parametrize("name", NAMES)
def test_a_small_file_is_read_only_if_it_is_one(
    generate: Run, broken: Path, name: str, make: Callable[[Path], None]
) -> None:
    path = broken / name
    path.unlink(missing_ok=True)
    make(path)
    done = generate([{"prompt": "a"}], using=broken)
    assert done.status == 2
    assert str(path) in done.err.replace("\n", "")
    wanted = "is larger than" if make is _sparse else "is not a file"
    assert wanted in " ".join(done.err.split())
    assert "kv-cache" not in done.err


def test_a_long_template_is_refused_by_its_own_name(generate: Run, broken: Path) -> None:
    config = broken / "tokenizer_config.json"
    fields = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**fields, "chat_template": "x" * 1_000_001}), encoding="utf-8")
    done = generate([{"prompt": "a"}], using=broken)
    assert done.status == 2
    assert "the chat template is longer than" in " ".join(done.err.split())
