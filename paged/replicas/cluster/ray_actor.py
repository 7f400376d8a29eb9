"""RayActor: a replica in a process of Ray's.

The threads of torch and Numba are set before either is imported, so nothing that does is imported
with this module.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING

from pagedrun.paged.replicas.cluster.pieces import in_pieces, whole
from pagedrun.paged.replicas.worker.replica_model import ReplicaModel

if TYPE_CHECKING:
    from pagedrun.paged.replicas.run_terms import RunTerms

Packet = tuple[bytes, bool]
"""A piece of an event, and whether it is the last one."""


class RayActor:
    """What the driver calls; each method in a thread of Ray's."""

    def __init__(self, model: ReplicaModel, most_sharing: int) -> None:
        """most_sharing: how many replicas there are at most."""
        model.prepare()
        import ray

        from pagedrun.paged.replicas.worker.replica_worker import ReplicaWorker

        self._node = ray.util.get_node_ip_address()
        num_sharing = _num_sharing(model.threads, most_sharing)
        self._worker = ReplicaWorker(lambda: model.load(self._node, num_sharing), self._node)
        self._arriving: dict[int, dict[int, Seq[bytes]]] = {}  # unit → call → pieces
        self._is_arriving = Lock()

    def events(self) -> Iterator[Packet]:
        """Load the model, and yield what there is to tell, each event in pieces."""
        from pagedrun.paged.replicas.replica_events import Placed

        for event in chain([Placed(self._node)], self._worker.events()):
            *others, last = in_pieces(event)
            yield from ((piece, False) for piece in others)
            yield last, True

    def begin(self, terms: "RunTerms") -> None:
        """Take the terms of the run."""
        self._worker.begin(terms)

    def feed(self, number: int, place: int, count: int, *pieces: bytes) -> None:
        """Take a unit, or what one of `count` calls has of it; they come in any order."""
        with self._is_arriving:
            calls = self._arriving.setdefault(number, {})
            calls[place] = pieces
            if len(calls) < count:
                return
            del self._arriving[number]
        self._worker.feed(number, whole(chain(*(calls[each] for each in range(count)))))

    def end(self) -> None:
        """Take note that no unit follows."""
        self._worker.end()


def _num_sharing(threads: int, most: int) -> int:
    """Return how many replicas may be on this node, each with so many CPUs."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    cpus = (node["Resources"].get("CPU", 1) for node in ray.nodes() if node["NodeID"] == here)
    return max(1, min(most, int(next(cpus, 1)) // max(threads, 1)))
