"""A replica in a Ray process: the actor, its model, and messages cut into pieces.

Torch and Numba read the number of threads when they are imported. So nothing that imports
either is imported with this module, and `ReplicaModel.prepare` sets the environment first.

Values travel in pieces inside Ray's messages, never through its object store: what is larger
than 100 KB would go into the store of the node that made it, be lost with that node, and be
refused where store and disk are full. Pickles add no risk, since all of Ray's messages are
pickles and only processes with the cluster's token send any. Only `--push-model` uses the
store, for the files of a model.
"""

import fcntl
import hashlib
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from pagedrun.kernels.environment.code_folder import private_folder
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError, option
from pagedrun.paged.values.pooling import PoolingParams

if TYPE_CHECKING:
    from pagedrun.paged.replicas.replica_messages import RunTerms
    from pagedrun.paged.replicas.replica_worker import PartEngine

PIECE_BYTES = 64 * 2**20
# Data only, as from the hub: no code is sent.
SENT = ("*.json", "*.safetensors", "*.jinja", "*.gguf", "tokenizer.model")
WHOLE = ".whole"  # marks a complete folder

Put = Callable[[bytes], Any]
Get = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class PushedFolder:
    """Folder in the object store.

    `files`: names, sizes in bytes, and handles of their pieces; `sha256`: of names, sizes and
    contents. `is_file`: a GGUF model, not a folder.
    """

    files: tuple[tuple[str, int, tuple[Any, ...]], ...]
    sha256: str
    is_file: bool = False

    @classmethod
    def of(cls, folder: Path, put: Put) -> "PushedFolder":
        """Put a model's folder, or file, into the object store.

        Raises `ModelError` if it cannot be read.
        """
        paths = [folder] if folder.is_file() else sorted({p for s in SENT for p in folder.glob(s)})
        digest, files = hashlib.sha256(), []
        try:
            for path in paths:
                size = path.stat().st_size
                digest.update(f"{path.name}\0{size}\n".encode())
                pieces = []
                with path.open("rb") as file:
                    while piece := file.read(PIECE_BYTES):
                        digest.update(piece)
                        pieces.append(put(piece))
                files.append((path.name, size, tuple(pieces)))
        except OSError as error:
            raise ModelError(f"{error.filename} cannot be read ({error.strerror})") from error
        return cls(tuple(files), digest.hexdigest(), folder.is_file())

    def unpack(self, get: Get, cache: Path | None = None) -> Path:
        """Return the folder, or file, on this node, written unless it exists.

        cache: parent of such folders, None for the user's cache. One process writes, others wait.
        Raises `ModelError` if it cannot be written, or is damaged.
        """
        cache = cache or private_folder("pushed")
        if cache is None:
            raise ModelError(f"{option('push_model')}: the user's cache folder cannot be used here")
        folder = cache / self.sha256
        try:
            with (cache / f"{self.sha256}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not (folder / WHOLE).exists():
                    self._write(get, folder)
        except OSError as error:
            raise ModelError(
                f"{option('push_model')}: {folder} cannot be written ({error.strerror})"
            ) from error
        return folder / self.files[0][0] if self.is_file else folder

    def _write(self, get: Get, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted transfer
        folder.mkdir()
        digest = hashlib.sha256()
        for name, size, pieces in self.files:
            digest.update(f"{name}\0{size}\n".encode())
            with (folder / name).open("wb") as file:
                for piece in map(get, pieces):
                    digest.update(piece)
                    file.write(piece)
        if digest.hexdigest() != self.sha256:
            raise ModelError(
                f"{option('push_model')}: the model was damaged during the transfer to {folder}"
            )
        (folder / WHOLE).touch()


# Folder of a model's revision in the hub's cache.
_HUB_FOLDER = re.compile(
    r"/models--(?P<org>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})$"
)


@dataclass(frozen=True, slots=True)
class ReplicaModel:
    """Model of a replica; can be pickled, and imports neither torch nor Numba.

    `tokenizer`: its folder. `threads`: of a replica. `pushed`: folders in the object store, by
    their paths. `pooled`: the task of texts; None for answers.
    """

    config: EngineConfig
    tokenizer: Path
    threads: int
    pushed: Mapping[Path, PushedFolder] = field(default_factory=dict)
    pooled: PoolingParams | None = None

    def prepare(self) -> None:
        """Set the environment that torch and Numba read when they are imported; call it before."""
        for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(self.threads)
        from pagedrun.kernels.environment.threads import prepare_environment

        prepare_environment()

    def load(self, node: str, num_sharing: int) -> "PartEngine":
        """Load the model; `num_sharing` replicas share the memory of this machine.

        Raises `ModelError` if the model does not exist.
        """
        from pagedrun.paged.replicas.part_engine import LoadedPartEngine, PooledPartEngine

        folder, tokenizer = self._here(self.config.model), self._here(self.tokenizer)
        config = replace(self.config, model=folder)
        if self.pooled is not None:
            return PooledPartEngine.load(config, tokenizer, node, num_sharing, self.pooled)
        return LoadedPartEngine.load(config, tokenizer, node, num_sharing)

    def _here(self, folder: Path) -> Path:
        """Return the location of a folder of the driver on this node."""
        if folder.exists():
            return folder
        if folder in self.pushed:
            import ray

            return self.pushed[folder].unpack(ray.get)
        found = _HUB_FOLDER.search(folder.as_posix())
        if found is not None:
            from pagedrun.paged.models.hub import resolve_model

            return resolve_model(f"{found['org']}/{found['name']}", found["commit"])
        raise ModelError(
            f"{folder} does not exist; put it on every node in the same place, or pass "
            f"{option('push_model')}"
        )


Packet = tuple[bytes, bool]
"""Piece of an event, and whether it is the last one."""


class RayActor:
    """Ray actor of a replica; each method runs in a thread of Ray's."""

    def __init__(self, model: ReplicaModel, most_sharing: int) -> None:
        """most_sharing: maximum number of replicas."""
        model.prepare()
        import ray

        from pagedrun.kernels.environment.bus_errors import watch_bus_errors
        from pagedrun.paged.replicas.replica_worker import ReplicaWorker

        self._node = ray.util.get_node_ip_address()
        num_sharing = _num_sharing(model.threads, most_sharing)
        self._worker = ReplicaWorker(lambda: model.load(self._node, num_sharing), self._node)
        self._bus_errors = watch_bus_errors(self._worker.fail)
        self._arriving: dict[int, dict[int, Seq[bytes]]] = {}  # unit → call → pieces
        self._is_arriving = Lock()

    def events(self) -> Iterator[Packet]:
        """Load the model, and yield events, each in pieces."""
        from pagedrun.paged.replicas.replica_messages import Placed

        for event in chain([Placed(self._node)], self._worker.events()):
            *others, last = in_pieces(event)
            yield from ((piece, False) for piece in others)
            yield last, True

    def begin(self, terms: "RunTerms") -> None:
        """Set the terms of the run."""
        self._worker.begin(terms)

    def feed(self, number: int, index: int, count: int, *pieces: bytes) -> None:
        """Add a unit, or the pieces in one of its `count` calls; they arrive in any order."""
        with self._is_arriving:
            calls = self._arriving.setdefault(number, {})
            calls[index] = pieces
            if len(calls) < count:
                return
            del self._arriving[number]
        self._worker.feed(number, whole(chain(*(calls[each] for each in range(count)))))

    def end(self) -> None:
        """Announce that no unit follows."""
        self._worker.end()


def _num_sharing(threads: int, most: int) -> int:
    """Return the maximum number of replicas on this node, each with `threads` CPUs."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    cpus = (node["Resources"].get("CPU", 1) for node in ray.nodes() if node["NodeID"] == here)
    return max(1, min(most, int(next(cpus, 1)) // max(threads, 1)))


MESSAGE_BYTES = 64 * 1024
CALL_PIECES = 64  # in one call, which may have 10 MB


def in_pieces(value: object) -> list[bytes]:
    """Return a value, pickled and cut; there is at least one piece."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return [data[begin : begin + MESSAGE_BYTES] for begin in range(0, len(data), MESSAGE_BYTES)]


def in_calls(value: object) -> Iterator[tuple[int, int, Seq[bytes]]]:
    """Yield the calls that carry a value: index, number of calls, and pieces."""
    pieces = in_pieces(value)
    begins = range(0, len(pieces), CALL_PIECES)
    for index, begin in enumerate(begins):
        yield index, len(begins), pieces[begin : begin + CALL_PIECES]


def whole(pieces: Iterable[bytes]) -> Any:
    """Return the value of these pieces, in order."""
    return pickle.loads(b"".join(pieces))
