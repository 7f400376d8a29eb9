"""Replicas for tests: slow ones, such that end at some rows, and all say which process they are."""

import os
import time
from collections.abc import Collection

from pagedrun.paged.metrics.timeline import StepRecord
from pagedrun.paged.replicas import ray_pool
from pagedrun.paged.replicas.ray_actor import RayActor, ReplicaModel
from pagedrun.paged.values.request import Completion


def script_replicas(*, poison: Collection[int] = (), step_s: float = 0.0) -> None:
    """Let all replicas that this process starts be such.

    poison: rows at whose answer the process ends. step_s: how much longer a step takes.
    """

    class RayActorByScript(RayActor):
        def __init__(self, model: ReplicaModel, most_sharing: int) -> None:
            super().__init__(model, most_sharing)
            self._node = f"{self._node}/{os.getpid()}"
            outbox = self._worker._outbox
            add, note_step = outbox.add, outbox.note_step

            def add_or_die(completion: Completion) -> None:
                if completion.request.index in poison:
                    os._exit(7)
                add(completion)

            def note_slowly(record: StepRecord) -> None:
                time.sleep(step_s)
                note_step(record)

            outbox.add = add_or_die  # type: ignore[method-assign]
            outbox.note_step = note_slowly  # type: ignore[method-assign]

    ray_pool.RayActor = RayActorByScript  # type: ignore[attr-defined]
