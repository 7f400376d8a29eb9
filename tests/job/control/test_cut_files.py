"""A mapped file that is cut in use: one sentence, what was saved, and exit status 1."""

import subprocess
import sys
from pathlib import Path

import pytest

# A thread reads memory of a file that another program cuts; `held`: with Python's lock.
PROGRAM = """
import mmap, os, sys, threading, time
from pathlib import Path
import numpy as np
from pagedrun.paged.job import signals
from pagedrun.kernels.environment import bus_errors

class Work:
    has_begun = True
    def leave(self):
        return "2 of 3 rows saved"
    def waited(self, seconds):
        return None

path, held = Path(sys.argv[1]), sys.argv[2] == "held"
bus_errors.GRACE_SECONDS = 1
watchdog = signals.Watchdog(lambda sentence: os.write(2, f"{sentence}\\n".encode()))
watchdog.start()
watchdog.protect(Work())
watchdog.catch_bus_errors()
path.write_bytes(bytes(2**20))
with path.open("r+b") as file:
    memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
numbers = np.frombuffer(memory, np.uint8)
os.truncate(path, 2**12)
if held:
    memory[2**19]
else:
    (numbers[2**19:] + np.uint8(1)).sum()
print("read")
"""


@pytest.mark.parametrize("held", ["held", "free"])
def test_it_is_named_and_rows_are_kept(held: str, tmp_path: Path) -> None:
    """A thread that holds Python's lock keeps the watchdog from saying more."""
    path = tmp_path / "model.safetensors"
    command = [sys.executable, "-c", PROGRAM, str(path), held]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    if held == "held":
        assert done.stderr == (
            "Error: a file in use, such as the weights of the model, was cut or cannot be read; "
            "finished rows are kept\n"
        )
    else:
        assert done.stderr == (
            f"Error: {path} was cut while it was in use; put the whole file back; "
            "2 of 3 rows saved\n"
        )
