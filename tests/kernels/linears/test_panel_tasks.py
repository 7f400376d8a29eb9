"""Tasks of panels, and threads that take them."""

from typing import Any

import numba
import numpy as np
import pytest

from pagedrun.kernels.cpu.jit import kernel
from pagedrun.kernels.cpu.linears.panel_product import count_tasks, cut_panels, place_of_task
from pagedrun.kernels.cpu.simd.arrays import new_counter, take_next


@kernel
def take_all(num_threads: Any, num_tasks: Any, taken: Any) -> None:
    tasks = new_counter()
    for _ in numba.prange(num_threads):
        while True:
            task = take_next(tasks)
            if task >= num_tasks:
                break
            taken[task] += 1


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_each_task_is_taken_once(num_threads: int) -> None:
    """A task that two threads took, or none, would be an output added twice, or never written."""
    for num_tasks in (0, 1, 3, 100_000):
        taken = np.zeros(num_tasks, np.int64)
        take_all(num_threads, num_tasks, taken)
        assert (taken == 1).all()


@pytest.mark.parametrize(("num_used", "num_panels"), [(1, 1), (1, 32), (1, 193), (5, 3), (64, 48)])
@pytest.mark.parametrize("at_once", [1, 4, 1000])
def test_tasks_are_all_panels_of_all_experts(num_used: int, num_panels: int, at_once: int) -> None:
    for num_threads in (1, 2, 3, 64):
        cut = cut_panels.py_func(num_threads, num_used, num_panels, min(at_once, num_panels))
        count = count_tasks.py_func(cut)
        places = [place_of_task.py_func(task, cut) for task in range(count)]
        panels = [(used, panel) for used, start, end in places for panel in range(start, end)]
        assert panels == [(used, panel) for used in range(num_used) for panel in range(num_panels)]
        assert max(end - start for _, start, end in places) <= at_once
