"""WatchedJob: a job on a cluster in a process of its own, and what it has said so far."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.replicas.faults.nodes import Nodes

PATIENCE = 180.0  # seconds for anything to happen
Event = dict[str, Any]


class WatchedJob:
    """Started when it is built. `events` are the lines of `driver`, each with the time `at`."""

    def __init__(
        self, nodes: Nodes, folder: Path, output: str, num_replicas: int, **changes: Any
    ) -> None:
        """changes: of `JobConfig`, `max_tokens`, and what `script_replicas` takes."""
        given = {
            "folder": str(folder),
            "output": output,
            "replicas": num_replicas,
            "address": nodes.address,
            **changes,
        }
        self.events: list[Event] = []
        self._has_more = threading.Condition()
        self._is_over = False
        self._errors = folder / f"{output}.stderr"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.replicas.faults.driver", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors.open("w"),
            env=nodes.environment,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def of(self, what: str) -> list[Event]:
        """Return the events of one kind."""
        return [event for event in list(self.events) if event["what"] == what]

    def until(self, is_so: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Wait until something is so, looked at after each event."""
        ends_at = time.monotonic() + patience
        with self._has_more:
            while not is_so():
                if self._is_over:
                    raise AssertionError(f"the job ended before: {self.told()}")
                if time.monotonic() > ends_at:
                    raise AssertionError(f"not within {patience:g} seconds: {self.told()}")
                self._has_more.wait(0.1)

    def until_rows(self, count: int) -> None:
        """Wait until so many rows are answered."""
        self.until(lambda: len(self.of("row")) >= count)

    def end_actor(self, replica: int) -> None:
        """Have Ray end the actor of a replica."""
        assert self.process.stdin is not None
        print(replica, file=self.process.stdin, flush=True)

    def kill(self) -> None:
        """End the driver at once."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def result(self, patience: float = PATIENCE) -> int:
        """Wait for its end; return its exit status."""
        try:
            status = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            told = self.told()
            self.kill()
            raise AssertionError(f"no end within {patience:g} seconds: {told}") from None
        with self._has_more:
            self._has_more.wait_for(lambda: self._is_over, 10)
        return status

    def report(self) -> dict[str, Any]:
        """Return the report of a job that went well."""
        status = self.result()
        assert status == 0, self.told()
        (event,) = self.of("report")
        report: dict[str, Any] = event["report"]
        return report

    def told(self) -> str:
        """Return what there is to say of it when it has gone wrong."""
        count = len(self.of("row"))
        others = [event for event in self.events if event["what"] not in ("row", "report")]
        return f"{count} rows, {others[-6:]}, {self._errors.read_text()[-2000:]}"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._has_more:
                if line.startswith("{"):
                    self.events.append(json.loads(line))
                self._has_more.notify_all()
        with self._has_more:
            self._is_over = True
            self._has_more.notify_all()
