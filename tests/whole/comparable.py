"""What two runs of one file must agree in."""

import json
import re
from pathlib import Path

from tests.jsonl import read_jsonl


def comparable_rows(path: Path | str) -> list[str]:
    """Return an output's rows in input order, but for what another schedule may do differently."""
    rows = read_jsonl(path)
    for row in rows:
        del row["usage"]["cached_tokens"]
    return [json.dumps(row) for row in sorted(rows, key=lambda row: int(row["index"]))]


def comparable_bytes(path: Path | str) -> bytes:
    """Return an ordered output as it is, but for what another schedule may do differently."""
    return re.sub(rb'"cached_tokens":\s*\d+', b'"cached_tokens":0', Path(path).read_bytes())
