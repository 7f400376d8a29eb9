"""Files of rows, a JSON value a line."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def jsonl(rows: Iterable[object]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_jsonl(path: Path, rows: Iterable[object]) -> Path:
    path.write_bytes(jsonl(rows))
    return path


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
