"""Ends the remains of a private cluster when the process that started it has ended.

Ray's own processes notice the death of a killed driver, except for some agents. This module is also
run as a program, so it imports the standard library only: it waits until its standard input is
closed, which the system does for every process that ends.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GRACE_SECONDS = 1.0  # before processes are killed
VARIABLE = "RAY_AUTH_TOKEN_PATH"  # set in all processes of a cluster


class ClusterReaper:
    """Process that waits for the end of this one."""

    def __init__(self, folder: Path) -> None:
        """folder: of the cluster, with its token; removed at the end."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, str(folder), str(os.getpid())],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def close(self) -> None:
        """End the cluster now, and wait for it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def processes_of(folder: str, driver: int) -> Iterator[int]:
    """Yield the Ray processes with a token or an open file in the folder, except for the driver.

    Processes that set their title hide their environment.
    """
    setting = f"{VARIABLE}={folder}/".encode()
    for each in Path("/proc").iterdir():
        if each.name.isdecimal() and int(each.name) not in (os.getpid(), driver):
            with suppress(OSError):
                line = (each / "cmdline").read_bytes()
                if not (line.startswith(b"ray::") or b"/site-packages/ray/" in line):
                    continue  # such as the driver, which has Ray's files open as well
                variables = (each / "environ").read_bytes().split(b"\0")
                files = (os.readlink(file) for file in (each / "fd").iterdir())
                has_token = any(variable.startswith(setting) for variable in variables)
                if has_token or any(file.startswith(f"{folder}/") for file in files):
                    yield int(each.name)


def reap(folder: str, driver: int) -> None:
    """Kill the processes of a cluster, and remove its folder."""
    until = time.monotonic() + GRACE_SECONDS
    while any(processes_of(folder, driver)) and time.monotonic() < until:
        time.sleep(0.05)
    while left := list(processes_of(folder, driver)):
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    reap(sys.argv[1], int(sys.argv[2]))
