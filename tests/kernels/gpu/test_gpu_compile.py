"""Every launch compiles for every chip, spills nothing and fits; the files of `cases` say which.

`pytest -m long` compiles all cases for all chips, the default run what the cases name as `short`.
"""

import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.gpu.ahead_of_time import CASES_FOLDER, CHIPS, Case, Launch, load_cases

NUM_WORKERS = 2
# The tables must use these where a case says so: those for whole warp groups, and the narrow ones.
MATRIX: dict[str, dict[str, tuple[str, ...]]] = {
    **{each: {"wide": ("mma",), "any": ("mma",)} for each in ("sm_80", "sm_86", "sm_89", "sm_120")},
    "sm_90": {"wide": ("wgmma",), "any": ("wgmma", "mma")},
    "sm_100": {"wide": ("tcgen05", "mma"), "any": ("tcgen05", "mma")},
    "gfx942": {"wide": ("mfma",), "any": ("mfma",)},
}
# Forms at the limit of registers give up a few; older Tritons take more of them. What each form
# spills is in benchmarks/results, by name.
MOST_SPILLED = 24 if tuple(map(int, version("triton").split(".")[:2])) >= (3, 9) else 192
Job = tuple[str, str, str]  # file of the case, name, chip


class Worker:
    """A process in which Triton compiles; see ahead_of_time.py."""

    def __init__(self) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, str(CASES_FOLDER.with_name("ahead_of_time.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def compile(self, job: Job) -> list[Launch]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or '{"error": "the compiler died"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return [Launch(**each) for each in answer["launches"]]

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Iterator[Callable[[Job], Future[list[Launch]]]]:
    """Return what compiles a job, where nobody has begun to.

    What this run selected is compiled in the background from now on; but where the tests are
    spread over processes, a job is left to the one that gets its test.
    """
    shares_tests = "PYTEST_XDIST_WORKER" in os.environ
    jobs: list[Job] = [
        item.callspec.params["job"]
        for item in request.session.items
        if item.path == Path(__file__) and hasattr(item, "callspec")
    ]
    idle: queue.Queue[Worker] = queue.Queue()
    workers = [Worker() for _ in range(1 if shares_tests else min(NUM_WORKERS, len(jobs)))]
    for worker in workers:
        idle.put(worker)

    def compile_job(job: Job) -> list[Launch]:
        worker = idle.get()
        try:
            return worker.compile(job)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(len(workers)) as pool:
        submit = cache(lambda job: pool.submit(compile_job, job))
        for job in () if shares_tests else jobs:
            submit(job)
        yield submit
        pool.shutdown(cancel_futures=True)
    for worker in workers:
        worker.close()


def all_jobs() -> Iterator[Any]:
    for path in sorted(CASES_FOLDER.glob("*.py")):
        for case in load_cases(path):
            for chip in CHIPS:
                marks = [] if chip in case.short else [pytest.mark.long]
                job: Job = (path.name, case.name, chip)
                yield pytest.param(job, case, id=f"{case.name}-{chip}", marks=marks)


@pytest.mark.heavy("the time of the compilers counts for the case after which they end")
@pytest.mark.parametrize(("job", "case"), list(all_jobs()))
def test_compiles_without_spills(
    job: Job, case: Case, compiled: Callable[[Job], Future[list[Launch]]]
) -> None:
    launches = compiled(job).result()
    assert launches, "the case launched nothing"
    for launch in launches:
        print(launch)
        assert launch.fuses is not None, launch
        assert launch.spilled <= MOST_SPILLED, launch
        assert launch.shared <= CHIPS[job[2]].shared_memory, launch
        # A group of warps frees a stage when all of them are done with it.
        arrivals = launch.instructions["arrival"], launch.instructions["arrival of a group"]
        assert arrivals[0] == arrivals[1], launch
    if case.is_one:
        forms = {launch.kernel: launch.form for launch in launches}
        assert [forms[launch.kernel] for launch in launches] == [each.form for each in launches]
    if case.matrix is not None:
        wanted = MATRIX[job[2]][case.matrix]
        assert any(launch.instructions[name] for launch in launches for name in wanted), launches
