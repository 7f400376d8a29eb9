"""Replicas as Ray actors, without Ray's restarts and retries.

Restarts would hide the death of a replica and its rows: the driver reassigns rows and requests
another replica. Each replica sends events through one stream, with back-pressure.
"""

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import count
from typing import Any

from pagedrun.paged.planning.plan_part import PlanPart
from pagedrun.paged.replicas.ray_actor import RayActor, ReplicaModel, in_calls, whole
from pagedrun.paged.replicas.ray_cluster import RayCluster
from pagedrun.paged.replicas.replica_messages import (
    Died,
    Ended,
    Failed,
    Heard,
    ReplicaEvent,
    RunTerms,
)

MAX_UNREAD = 8  # unread packets of a replica
MAX_CONCURRENT = 4  # calls of an actor beside its stream
MAX_CAUSE_CHARS = 300


@dataclass(frozen=True, slots=True)
class _Actor:
    handle: Any
    stream: Any
    begun: list[bytes]  # pieces of an incomplete event


class RayPool:
    """Implements `replica_messages.ReplicaPool`."""

    def __init__(
        self, cluster: RayCluster, model: ReplicaModel, num_wanted: int, num_gpus: float
    ) -> None:
        """num_gpus: of each replica."""
        self._cluster = cluster
        self._ray = cluster.ray
        self._model = model
        self.num_wanted = num_wanted
        self._numbers = count()
        self._actors: dict[int, _Actor] = {}
        self._class = self._ray.remote(RayActor).options(
            num_cpus=model.threads,
            num_gpus=num_gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=1 + MAX_CONCURRENT,
            scheduling_strategy="SPREAD",
        )

    def add(self) -> int:
        """Request another replica."""
        number = next(self._numbers)
        handle = self._class.remote(self._model, self.num_wanted)
        streamed = handle.events.options(
            num_returns="streaming", _generator_backpressure_num_objects=MAX_UNREAD
        )
        self._actors[number] = _Actor(handle, streamed.remote(), [])
        return number

    def begin(self, replica: int, terms: RunTerms) -> None:
        """Send the terms of the run."""
        if (actor := self._actors.get(replica)) is not None:
            actor.handle.begin.remote(terms)

    def feed(self, replica: int, number: int, part: PlanPart) -> None:
        """Send a unit."""
        if (actor := self._actors.get(replica)) is not None:
            for index, num_calls, pieces in in_calls(part):
                actor.handle.feed.remote(number, index, num_calls, *pieces)

    def end(self, replica: int) -> None:
        """Announce that no unit follows."""
        if (actor := self._actors.get(replica)) is not None:
            actor.handle.end.remote()

    def kill(self, replica: int) -> None:
        """Kill a replica."""
        actor = self._actors.pop(replica, None)
        if actor is not None:
            self._ray.kill(actor.handle, no_restart=True)

    def events(self, timeout_s: float) -> Seq[Heard]:
        """Return new events, at most one of each replica."""
        streams = {each.stream: number for number, each in self._actors.items()}
        if not streams:
            time.sleep(timeout_s)
            return []
        ready, waiting = self._ray.wait(list(streams), num_returns=1, timeout=timeout_s)
        if ready and waiting:
            more, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
            ready += more
        return [heard for stream in ready for heard in self._next(streams[stream], stream)]

    def close(self) -> None:
        """Kill all replicas and, if it was started here, the cluster."""
        for number in list(self._actors):
            self.kill(number)
        self._cluster.close()

    def _next(self, number: int, stream: Any) -> Iterator[Heard]:
        begun = self._actors[number].begun
        try:
            piece, is_last = self._ray.get(next(stream))
        except StopIteration:
            self._actors.pop(number, None)
            return
        except Exception as error:
            self.kill(number)
            yield number, Died(_cause(error))
            return
        begun.append(piece)
        if not is_last:
            return
        event: ReplicaEvent = whole(begun)
        begun.clear()
        yield number, event
        if isinstance(event, Ended | Failed):
            self.kill(number)


def _cause(error: Exception) -> str:
    """Return the cause of an actor's death in one line; of a long message the beginning and the
    last line, with the exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = " ".join([f"{type(error).__name__}:", *lines])
    if len(cause) > MAX_CAUSE_CHARS:
        cause = f"{cause[: MAX_CAUSE_CHARS // 2]} … {lines[-1][: MAX_CAUSE_CHARS // 2]}"
    return cause
