"""A job on a cluster, in a process of its own, which says what happens in lines of JSON.

The first argument is a JSON object with `folder`, `output`, `replicas`, `address`, and what
`JobConfig` takes beside. Each line has the time, `at`, and what it is: a `row` that a replica has
answered, a replica that was `placed` in a process, has `joined`, or `died` with its rows, a
`warning`, and in the end the `report` or the `error`. A line with a number on standard input has
Ray end the actor of the replica with this number, as anybody on a cluster may.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from pagedrun.paged.replicas.ray_pool import RayPool
from pagedrun.paged.replicas.replica_messages import Heard, Placed
from pagedrun.paged.replicas.unit_queue import UnitQueue
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig
from pagedrun.paged.values.errors import PagedrunError
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder
from tests.replicas.demo_job import Watcher, demo_job
from tests.replicas.faults.scripted_actor import script_replicas

Tell = Callable[..., None]


class Teller(Watcher):
    """Tells what a job reports."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def on_warning(self, message: str) -> None:
        self._tell("warning", message=message)


def teller() -> Tell:
    lock = threading.Lock()
    lines = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Ray prints must not come between

    def tell(what: str, **more: Any) -> None:
        line = json.dumps({"at": time.time(), "what": what, **more})
        with lock:
            lines.write(f"{line}\n".encode())
            lines.flush()

    return tell


def watch(tell: Tell) -> None:
    """Tell what becomes of replicas and rows, and end actors when asked to."""
    died, join, answer = UnitQueue.died, UnitQueue.join, UnitQueue.answer
    events = RayPool.events

    def died_and_told(queue: UnitQueue, replica: int) -> list[int]:
        rows = [row for held in queue._held[replica].values() for row in held.open]
        tell("died", replica=replica, rows=rows)
        return died(queue, replica)

    def joined_and_told(queue: UnitQueue, replica: int) -> None:
        tell("joined", replica=replica)
        join(queue, replica)

    def answered_and_told(queue: UnitQueue, replica: int, row: int) -> bool:
        is_first = answer(queue, replica, row)
        if is_first:
            tell("row", row=row, replica=replica)
        return is_first

    def heard_and_told(pool: RayPool, timeout_s: float) -> Seq[Heard]:
        pools[:] = [pool]
        heard = events(pool, timeout_s)
        for number, event in heard:
            if isinstance(event, Placed):
                tell("placed", replica=number, pid=int(event.node.rpartition("/")[2]))
        return heard

    def listen() -> None:
        for line in sys.stdin:
            actor = pools[0]._actors.get(int(line))
            if actor is not None:
                pools[0]._ray.kill(actor.handle)

    pools: list[RayPool] = []
    UnitQueue.died = died_and_told  # type: ignore[assignment,method-assign]
    UnitQueue.join = joined_and_told  # type: ignore[assignment,method-assign]
    UnitQueue.answer = answered_and_told  # type: ignore[assignment,method-assign]
    RayPool.events = heard_and_told  # type: ignore[assignment,method-assign]
    threading.Thread(target=listen, daemon=True).start()


def main(given: dict[str, Any]) -> int:
    folder, output = Path(given.pop("folder")), given.pop("output")
    num_replicas = given.pop("replicas")
    tell = teller()
    watch(tell)
    script_replicas(poison=given.pop("poison", []), step_s=given.pop("step_s", 0.0))
    settings: dict[str, Any] = {
        "engine": EngineConfig(model=demo_model_folder(), num_blocks=600, max_num_seqs=8),
        "sampling": SamplingParams(max_tokens=given.pop("max_tokens", 12), temperature=1.0),
        "replicas": ReplicaConfig(
            replicas=num_replicas,
            ray_address=given.pop("address"),
            cpus_per_replica=None if num_replicas is None else 1,
        ),
    }
    try:
        result, _ = demo_job(folder, output, num_replicas, Teller(tell), **settings, **given)
    except PagedrunError as error:
        tell("error", message=error.marked, kind=type(error).__name__)
        return 1
    tell("report", report=result.report)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
