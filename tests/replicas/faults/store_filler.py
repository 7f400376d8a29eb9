"""Fills the object stores of all nodes with what can neither be spilled nor dropped, for some
seconds; the arguments are the cluster's address and how many."""

import sys
import time
from contextlib import suppress
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PIECE_BYTES = (2**20, 2**17)  # the last ones small, so that nothing has room any more
MOST_PIECES = 200


class Holder:
    """Keeps what it has put into the store of its node in use."""

    def __init__(self) -> None:
        self._held: list[tuple[Any, Any]] = []

    def fill(self) -> int:
        """Put pieces until there is no room; return how many."""
        for size in PIECE_BYTES:
            with suppress(ray.exceptions.RayError):
                while len(self._held) < MOST_PIECES:
                    reference = ray.put(np.zeros(size, np.uint8))
                    self._held.append((reference, ray.get(reference)))
        return len(self._held)


def fill(address: str, seconds: float) -> None:
    """Fill them, say with how many pieces each, and end in time."""
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    actor: Any = ray.remote(Holder)
    holders = [
        actor.options(
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote()
        for node in nodes
    ]
    filled = ray.get([each.fill.remote() for each in holders])
    print(*filled, flush=True)
    time.sleep(seconds)


if __name__ == "__main__":
    fill(sys.argv[1], float(sys.argv[2]))
