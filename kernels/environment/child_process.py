"""Child processes that answer requests of one line."""

import subprocess
from collections.abc import Sequence
from contextlib import suppress


def start_child(command: Sequence[str]) -> "subprocess.Popen[str]":
    """Start a process with pipes for ASCII lines; its standard error is dropped."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="ascii",
        start_new_session=True,  # interrupts are for the parent to handle
    )


def end_child(process: "subprocess.Popen[str]") -> None:
    """Kill a process, close its pipes and wait for it."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # output not written when the process ended
                pipe.close()
    process.wait()
