"""Nodes: a cluster with several nodes on this machine, any of which can be lost."""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pagedrun.paged.replicas.cluster_reaper import reap
from tests.replicas.processes import descendants

ROOT = Path(__file__).resolve().parents[3]
# As Ray has it, a lost node is noticed after some 15 seconds; so, after about 2.
QUICK = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


class Nodes:
    """A head node without CPUs, on which drivers are, and nodes with one CPU each, known by the
    process ids of their raylets. Everything is on the loopback interface, behind a token."""

    def __init__(self, num_nodes: int, settings: Mapping[str, str] = QUICK) -> None:
        """settings: environment variables of all of Ray's processes."""
        self.folder = Path(tempfile.mkdtemp(prefix="prn-", dir="/tmp"))
        token = self.folder / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_BACKEND_LOG_LEVEL": "fatal",
            "RAY_worker_niceness": "0",
            "RAY_memory_monitor_refresh_ms": "0",
            **settings,
        }
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.replicas.faults.node_server", str(num_nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "errors").open("w"),
            env={**self.environment, "RAY_TMPDIR": str(self.folder)},
            text=True,
            start_new_session=True,
        )
        try:
            begun = self._answer()
            self.address, self.gcs = str(begun["address"]), int(begun["gcs"])
            self.raylets = [int(self._answer()["raylet"]) for _ in range(num_nodes)]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all nodes, whatever state they are in."""
        for raylet in getattr(self, "raylets", []):
            self.thaw(raylet)
        self._server.kill()  # its nodes are ended by the reaper, sooner than in good order
        self._server.communicate()
        reap(str(self.folder), os.getpid())

    def add(self) -> int:
        """Start another node; return it."""
        raylet = int(self._ask("add")["raylet"])
        self.raylets.append(raylet)
        return raylet

    def lose(self, raylet: int) -> None:
        """End a node as a machine ends that loses its power."""
        _signal([raylet, *descendants(raylet)], signal.SIGKILL)
        self.forget(raylet)

    def forget(self, raylet: int) -> None:
        """Let go of a node whose raylet is no more."""
        self.raylets.remove(raylet)
        self._ask(f"gone {raylet}")

    def freeze(self, raylet: int) -> None:
        """Stop a node in the middle of everything, as a machine that swaps or is paused."""
        _signal([raylet, *descendants(raylet)], signal.SIGSTOP)

    def thaw(self, raylet: int) -> None:
        """Let a frozen node go on."""
        _signal([raylet, *descendants(raylet)], signal.SIGCONT)

    def replicas_on(self, raylet: int) -> list[int]:
        """Return the processes of replicas on a node."""
        return [pid for pid, line in descendants(raylet).items() if "ray::RayActor" in line]

    @property
    def replicas(self) -> list[int]:
        """The processes of replicas, on whichever node."""
        return [pid for raylet in self.raylets for pid in self.replicas_on(raylet)]

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._server.stdin is not None
        print(line, file=self._server.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            told = (self.folder / "errors").read_text()[-2000:]
            raise RuntimeError(f"the nodes are gone: {told}")
        found: dict[str, Any] = json.loads(line)
        return found


def _signal(pids: Iterable[int], signum: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
