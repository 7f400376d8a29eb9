"""Tasks of panels, and threads that take them."""

from typing import Any

import numba
import numpy as np
import pytest

from pagedrun.kernels.cpu.jit import kernel, serial_kernel
from pagedrun.kernels.cpu.linears.panel_product import cut_panels, next_panels
from pagedrun.kernels.cpu.simd.arrays import next_task, share_tasks


@kernel
def take_all(num_threads: Any, num_tasks: Any, taken: Any) -> None:
    tasks = share_tasks(num_threads, num_tasks)
    for thread in numba.prange(num_threads):
        while True:
            task = next_task(tasks, thread)
            if task < 0:
                break
            taken[task] += 1


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_each_task_is_taken_once(num_threads: int) -> None:
    """A task that two threads took, or none, would be an output added twice, or never written."""
    for num_tasks in (0, 1, 3, 100_000):
        taken = np.zeros(num_tasks, np.int64)
        take_all(num_threads, num_tasks, taken)
        assert (taken == 1).all()


@serial_kernel
def take_for_one(num_threads: Any, num_tasks: Any, thread: Any, taken: Any) -> None:
    tasks = share_tasks(num_threads, num_tasks)
    for i in range(taken.shape[0]):
        taken[i] = next_task(tasks, thread)


def test_a_thread_takes_its_own_share_and_then_those_of_others() -> None:
    """Else the slowest thread decides, as with equal shares."""
    taken = np.empty(9, np.int64)
    take_for_one(3, 7, 1, taken)
    assert taken.tolist() == [2, 3, 4, 5, 6, 0, 1, -1, -1]


@kernel
def take_panels(num_threads: Any, num_used: Any, num_panels: Any, at_once: Any, taken: Any) -> None:
    cut = cut_panels(num_threads, num_used, num_panels, at_once)
    for thread in numba.prange(num_threads):
        while True:
            used, start, end = next_panels(cut, thread)
            if start == end:
                break
            taken[used, start] += end - start


@pytest.mark.parametrize(("num_used", "num_panels"), [(1, 1), (1, 32), (1, 193), (5, 3), (64, 48)])
@pytest.mark.parametrize("at_once", [1, 4, 1000])
def test_tasks_are_all_panels_of_all_experts(num_used: int, num_panels: int, at_once: int) -> None:
    for num_threads in (1, 2, 3, 64):
        taken = np.zeros((num_used, num_panels), np.int64)
        take_panels(num_threads, num_used, num_panels, min(at_once, num_panels), taken)
        assert taken.max() <= at_once
        assert (taken.sum(axis=1) == num_panels).all()
        for sizes in taken:  # a task begins where the one before it ends
            starts = np.flatnonzero(sizes)
            assert (np.cumsum(sizes[starts]) == [*starts[1:], num_panels]).all()


@pytest.mark.parametrize(("num_used", "num_panels"), [(0, 4), (3, 0)])
def test_no_panels_are_no_tasks(num_used: int, num_panels: int) -> None:
    taken = np.zeros((num_used, num_panels), np.int64)
    take_panels(2, num_used, num_panels, 4, taken)
    assert taken.sum() == 0
