"""What two runs of one file must agree in."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.jsonl import read_jsonl


def comparable_rows(path: Path | str) -> list[str]:
    """Return an output's rows in input order, but for what another schedule may do differently."""
    rows = read_jsonl(path)
    for row in rows:
        del row["usage"]["cached_tokens"]
    return [json.dumps(row) for row in sorted(rows, key=lambda row: int(row["index"]))]


def comparable_bytes(path: Path | str) -> bytes:
    """Return an ordered output as it is, but for what another schedule may do differently."""
    return re.sub(rb'"cached_tokens":\s*\d+', b'"cached_tokens":0', Path(path).read_bytes())


def differences(found: bytes, wanted: bytes) -> list[str]:
    """Return where the rows of two outputs part, in the same order, and what each has there."""
    pairs = zip(found.splitlines(), wanted.splitlines(), strict=True)
    return [
        f"row {place}{where}"
        for place, (one, other) in enumerate(pairs)
        if one != other
        for where in _differences(json.loads(one), json.loads(other), "")
    ]


def _differences(one: Any, other: Any, path: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from _differences(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences(*pair, f"{path}[{place}]")
    elif one != other:
        yield f"{path}: {one!r}, not {other!r}"
