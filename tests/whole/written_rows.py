"""Waiting for rows of a running command."""

import time
from pathlib import Path

SECONDS = 240.0  # for a process to come to anything


def wait_for_rows(pid: int, output: Path, num_bytes: int) -> None:
    """Return when the output has grown by so much, or the process is over."""
    before = output.stat().st_size if output.exists() else 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and Path(f"/proc/{pid}/exe").exists():
        size = output.stat().st_size if output.exists() else 0
        if size >= before + num_bytes:
            return
        time.sleep(0.001)
