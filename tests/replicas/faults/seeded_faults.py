"""A job whose cluster has faults in its middle that are drawn by a seed."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from tests.replicas.faults.fault import Fault, Kind
from tests.replicas.faults.nodes import Nodes
from tests.replicas.faults.watched_job import WatchedJob
from tests.replicas.processes import is_running
from tests.support.comparable import comparable_bytes, differences

NUM_NODES = 3
FEWEST, MOST = 30, 110  # rows that are answered between two faults
# Before half of the faults two replicas are waited for, at most so long: then the time counts until
# others go on. The other half may strike when none is left.
PATIENCE_SECONDS = 30.0
STALL_SECONDS = 8.0
END_SECONDS = 20.0  # for replicas to be gone after their job
# Nothing may be written to disk in the place of a full object store.
SETTINGS = {"RAY_local_fs_capacity_threshold": "0.01"}


class SeededFaults:
    """One job on `nodes` with faults; `run` returns them."""

    def __init__(
        self,
        nodes: Nodes,
        folder: Path,
        seed: int,
        num_faults: int = 0,
        kinds: Seq[Kind] = (),
    ) -> None:
        """Draw `num_faults`, or take these `kinds`."""
        self._nodes = nodes
        self._folder = folder
        self._draw = random.Random(seed)
        self._output = "-".join(["faults", str(seed), *(kind.name for kind in kinds)]) + ".jsonl"
        self._num_replicas = self._draw.choice([2, 2, 3])
        self._kinds = kinds or [self._draw.choice(list(Kind)) for _ in range(num_faults)]
        self._fillers: list[subprocess.Popen[str]] = []
        self._frozen: list[int] = []
        self.faults: list[Fault] = []
        self.job: WatchedJob

    def run(self, wanted: bytes) -> None:
        """Run the job to its end; raise `AssertionError` if it does not give the bytes wanted."""
        for raylet in [each for each in self._nodes.raylets if not is_running(each)]:
            self._nodes.forget(raylet)  # it was stopped for long, and has found itself dead
        while len(self._nodes.raylets) < NUM_NODES:
            self._nodes.add()
        while len(self._nodes.raylets) > NUM_NODES:
            self._nodes.lose(self._nodes.raylets[-1])
        self.job = self._started()
        try:
            for kind in self._kinds:
                self._await_rows(self._draw.randint(FEWEST, MOST))
                if self._draw.random() < 0.5:
                    self._await_replicas()
                if not self.job.of("report"):
                    self.faults.append(self._strike(kind))
            assert self.job.result() == 0, self.job.told()
        finally:
            self._thaw()
            for filler in self._fillers:
                filler.kill()
                filler.communicate()
            if self.job.process.poll() is None:
                self.job.kill()
        found = comparable_bytes(self._folder / self._output)
        assert found == wanted, differences(found, wanted)[:10]
        until = time.monotonic() + END_SECONDS
        while self._nodes.replicas and time.monotonic() < until:
            time.sleep(0.1)
        assert not self._nodes.replicas, "a replica is left"

    def _started(self, **changes: Any) -> WatchedJob:
        return WatchedJob(
            self._nodes,
            self._folder,
            self._output,
            self._num_replicas,
            stall_timeout=STALL_SECONDS,
            step_s=0.04,
            **changes,
        )

    def _await_rows(self, count: int) -> None:
        """Wait for so many rows, or the end."""
        so_far = len(self.job.of("row"))
        job = self.job
        job.until(lambda: len(job.of("row")) >= so_far + count or bool(job.of("report")))

    def _await_replicas(self) -> None:
        """Wait until two replicas run, or the end."""
        until = time.monotonic() + PATIENCE_SECONDS
        job = self.job
        job.until(
            lambda: len(self._running()) >= 2 or bool(job.of("report")) or time.monotonic() > until
        )

    def _strike(self, kind: Kind) -> Fault:
        self._thaw()
        nodes = self._nodes
        if kind in (Kind.NODE, Kind.RAYLET) and len(nodes.raylets) < 2:
            kind = Kind.ADDED
        if kind is Kind.ADDED:
            waits = len(self.job.of("placed")) < self._num_replicas + len(self.job.of("died"))
            nodes.add()
            return Fault(kind, self.job, waits=waits)
        if kind is Kind.STORE:
            fault = Fault(kind, self.job)
            self._fill()
            return fault
        if kind is Kind.DRIVER:
            return self._end_driver()
        # A replica that runs: those that load or wait have no rows.
        replica = self._draw.choice(self._running() or [-1])
        pid = self._pid_of(replica)
        node = next((each for each in nodes.raylets if pid in nodes.replicas_on(each)), None)
        if pid is None or node is None:  # all are dead, and the next one is not there yet
            nodes.add()
            return Fault(Kind.ADDED, self.job, waits=True)
        others = len(self._running()) - 1
        fault = Fault(kind, self.job, [] if kind is Kind.STOPPED else [replica], others)
        if kind is Kind.ACTOR:
            self.job.end_actor(replica)
        elif kind is Kind.WORKER:
            os.kill(pid, signal.SIGKILL)
        elif kind is Kind.FROZEN:
            os.kill(pid, signal.SIGSTOP)
            self._frozen.append(pid)
        elif kind is Kind.NODE:
            nodes.lose(node)
        elif kind is Kind.RAYLET:
            os.kill(node, signal.SIGKILL)
            nodes.forget(node)
        else:
            nodes.freeze(node)
            time.sleep(self._draw.uniform(2, 4))
            nodes.thaw(node)
        return fault

    def _end_driver(self) -> Fault:
        """Kill the driver; resume the job, and take the time until its first row."""
        before = self._nodes.replicas
        self.job.kill()
        fault = Fault(Kind.DRIVER, self.job)
        until = time.monotonic() + END_SECONDS
        while any(map(is_running, before)) and time.monotonic() < until:
            time.sleep(0.01)
        assert not any(map(is_running, before)), "a replica outlives its driver"
        fault.gone_at = time.time()
        fault.job = self.job = self._started(resume=True)
        return fault

    def _fill(self) -> None:
        self._fillers.append(
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.replicas.faults.store_filler"),
                    *(self._nodes.address, "5"),
                ],
                env=self._nodes.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        assert self._fillers[-1].stdout is not None
        filled = self._fillers[-1].stdout.readline().split()
        assert filled, "the stores were not filled"

    def _running(self) -> list[int]:
        gone = {each["replica"] for each in self.job.of("died")}
        return [each["replica"] for each in self.job.of("joined") if each["replica"] not in gone]

    def _pid_of(self, replica: int) -> int | None:
        pids = [each["pid"] for each in self.job.of("placed") if each["replica"] == replica]
        return pids[0] if pids and is_running(pids[0]) else None

    def _thaw(self) -> None:
        """Let stopped processes go on: nothing may come of it."""
        for pid in self._frozen:
            if is_running(pid):
                os.kill(pid, signal.SIGCONT)
        self._frozen.clear()
