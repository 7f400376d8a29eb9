"""Manifests as other runs would have left them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def change_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the object of a manifest."""
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_text(json.dumps(manifest))


def as_if_killed(path: Path) -> None:
    """Give a run the manifest that it had at its start."""
    at_start = {"rows": {}, "lines": {"count": 0, "digests": "0" * 32}, "files": {}}
    change_manifest(path, lambda each: each.update(status="running", **at_start))
