"""Stopwatch: the seconds of calls that take turns, each begun with nothing of its data in a cache.

On a GPU a call is captured into a graph first, as an engine would, so that what Python does to
launch it is not in its time; what is, is the launch of one graph, which `Roofline` states.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from time import perf_counter
from typing import Protocol

import torch

Call = Callable[[], object]

# Twice the cache, since what is replaced first is not always what was used last.
FLUSHED_CACHES = 2


class Stopwatch(Protocol):
    """Times calls in turns."""

    @property
    def flushed_bytes(self) -> int:
        """Bytes that are read and written before each call, to empty the caches."""
        ...

    def prepare(self, call: Call) -> Call:
        """Return the call in the form that is timed. It has run before: nothing is compiled then.

        Raises what the call raises.
        """
        ...

    def seconds(self, prepared: Seq[Call], turns: int) -> list[list[float]]:
        """Return the seconds of each call in each turn; the order is reversed every other turn."""
        ...


class HostStopwatch:
    """For calls that are done when they return."""

    def __init__(self, cache_bytes: int) -> None:
        self._scratch = torch.zeros(FLUSHED_CACHES * cache_bytes // 4)

    @property
    def flushed_bytes(self) -> int:
        """See `Stopwatch`."""
        return self._scratch.nbytes

    def prepare(self, call: Call) -> Call:
        """See `Stopwatch`."""
        return call

    def seconds(self, prepared: Seq[Call], turns: int) -> list[list[float]]:
        """See `Stopwatch`."""
        taken: list[list[float]] = [[] for _ in prepared]
        for turn in range(turns):
            for index in _order(len(prepared), turn):
                self._scratch.add_(1.0)
                began = perf_counter()
                prepared[index]()
                taken[index].append(perf_counter() - began)
        return taken


class GpuStopwatch:
    """For calls that only queue work on the current GPU; events on the device take the time."""

    def __init__(self, cache_bytes: int) -> None:
        self._scratch = torch.zeros(FLUSHED_CACHES * cache_bytes // 4, device="cuda")

    @property
    def flushed_bytes(self) -> int:
        """See `Stopwatch`."""
        return self._scratch.nbytes

    def prepare(self, call: Call) -> Call:
        """See `Stopwatch`. Also raises where a call cannot be captured."""
        return _captured(call)

    def seconds(self, prepared: Seq[Call], turns: int) -> list[list[float]]:
        """See `Stopwatch`."""
        events: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in prepared]
        for turn in range(turns):
            for index in _order(len(prepared), turn):
                began, ended = _event(), _event()
                self._scratch.add_(1.0)
                began.record()
                prepared[index]()
                ended.record()
                events[index].append((began, ended))
            torch.cuda.synchronize()
        return [[began.elapsed_time(ended) / 1e3 for began, ended in each] for each in events]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _order(count: int, turn: int) -> Seq[int]:
    return range(count) if turn % 2 == 0 else range(count - 1, -1, -1)


def _captured(call: Call) -> Call:
    """Return what replays the call as one graph."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):  # libraries set themselves up in their first call
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
