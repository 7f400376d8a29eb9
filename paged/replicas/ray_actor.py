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

if TYPE_CHECKING:
    from pagedrun.paged.replicas.part_engine import LoadedPartEngine
    from pagedrun.paged.replicas.replica_messages import RunTerms

PIECE_BYTES = 64 * 2**20
# Data only, as from the hub: nothing that can be executed is sent.
SENT = ("*.json", "*.safetensors", "*.jinja", "*.gguf", "tokenizer.model")
WHOLE = ".whole"  # in a folder to which nothing is missing

Put = Callable[[bytes], Any]
Get = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class PushedFolder:
    """`files` has names, sizes in bytes, and the handles of their pieces in the object store;
    `sha256` is of names, sizes and contents. Of a GGUF model it `is_file`."""

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
        """Return the folder, or file, on this node, written if it is not there yet.

        cache: where such folders are kept, None for the user's cache. One process writes it, others
        wait. Raises `ModelError` if it cannot be written, or arrives damaged.
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
        shutil.rmtree(folder, ignore_errors=True)  # what an earlier one has left in the middle
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


# How the hub's cache names the folder of a model's revision.
_HUB_FOLDER = re.compile(
    r"/models--(?P<org>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})$"
)


@dataclass(frozen=True, slots=True)
class ReplicaModel:
    """What a replica is told to load; can be pickled, and imports neither torch nor Numba.

    `tokenizer` is its folder. `threads` is what a replica may compute with. `pushed` has what was
    sent in place of these folders, by their paths.
    """

    config: EngineConfig
    tokenizer: Path
    threads: int
    pushed: Mapping[Path, PushedFolder] = field(default_factory=dict)

    def prepare(self) -> None:
        """Set what torch and Numba read when they are imported; call it before they are."""
        for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(self.threads)
        from pagedrun.kernels.environment.threads import prepare_environment

        prepare_environment()

    def load(self, node: str, num_sharing: int) -> "LoadedPartEngine":
        """Read the weights; `num_sharing` replicas share the memory of this machine.

        Raises `ModelError` where the model is not there.
        """
        from pagedrun.paged.replicas.part_engine import LoadedPartEngine

        folder, tokenizer = self._here(self.config.model), self._here(self.tokenizer)
        config = replace(self.config, model=folder)
        return LoadedPartEngine.load(config, tokenizer, node, num_sharing)

    def _here(self, folder: Path) -> Path:
        """Return where a folder of the driver's is on this node."""
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
"""A piece of an event, and whether it is the last one."""


class RayActor:
    """What the driver calls; each method in a thread of Ray's."""

    def __init__(self, model: ReplicaModel, most_sharing: int) -> None:
        """most_sharing: how many replicas there are at most."""
        model.prepare()
        import ray

        from pagedrun.paged.replicas.replica_worker import ReplicaWorker

        self._node = ray.util.get_node_ip_address()
        num_sharing = _num_sharing(model.threads, most_sharing)
        self._worker = ReplicaWorker(lambda: model.load(self._node, num_sharing), self._node)
        self._arriving: dict[int, dict[int, Seq[bytes]]] = {}  # unit → call → pieces
        self._is_arriving = Lock()

    def events(self) -> Iterator[Packet]:
        """Load the model, and yield what there is to tell, each event in pieces."""
        from pagedrun.paged.replicas.replica_messages import Placed

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


MESSAGE_BYTES = 64 * 1024
CALL_PIECES = 64  # in one call, which may have 10 MB


def in_pieces(value: object) -> list[bytes]:
    """Return a value, pickled and cut; there is at least one piece."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return [data[begin : begin + MESSAGE_BYTES] for begin in range(0, len(data), MESSAGE_BYTES)]


def in_calls(value: object) -> Iterator[tuple[int, int, Seq[bytes]]]:
    """Yield what each call carries of a value: which it is, of how many, and its pieces."""
    pieces = in_pieces(value)
    begins = range(0, len(pieces), CALL_PIECES)
    for place, begin in enumerate(begins):
        yield place, len(begins), pieces[begin : begin + CALL_PIECES]


def whole(pieces: Iterable[bytes]) -> Any:
    """Return the value that these are the pieces of, in order."""
    return pickle.loads(b"".join(pieces))
