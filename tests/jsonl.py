"""Files of rows, a JSON object a line."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def jsonl(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text(jsonl(rows), encoding="utf-8")
    return path


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
