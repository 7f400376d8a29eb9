"""PackedFolder: layers of one model in the layout of its kernels, a file for each.

A file is a header of whole pages and the bytes of all arrays, each at a multiple of a cache line:
the same bytes that a layer has in memory, so that reading is all that is left to do. A file is
written whole or not at all; packing can be interrupted at any time and goes on behind the last
whole file. The folder is named by a digest of everything that the layout depends on.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagedrun.kernels.environment.code_folder import private_folder
from pagedrun.paged.cache.prefix_store.folder import stamps
from pagedrun.paged.files.atomic import PRIVATE_MODE, make_folder, replace_file, replace_json
from pagedrun.paged.files.regular import open_regular
from pagedrun.paged.models.runnable_config import RunnableConfig, model_identity
from pagedrun.paged.models.streaming.residency import PAGE_BYTES, PassSpeeds
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError, option

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.stored_layers import Bytes, StoredLayer

_MAGIC = b"pagedrun packed layers 2\n"
_LENGTH_BYTES = 8  # of the header's length, and of its checksum
_MOST_HEADER_BYTES = 2**26
_LINE_BYTES = 64
_ENDING = ".packed"
_IDENTITY = "model.json"
_SPEEDS = "speeds.json"
_LOCK = ".lock"
_FOLDER_MODE = 0o700
# Of a file that is no whole entry; the last two: of an infinite number, and of deep nesting.
_NO_ENTRY = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class PackedEntry:
    """File of packed layers, in the order of their use.

    place: names of its folder and of the entry, which a file keeps when it is copied. offsets: of
    each array of each layer, from `data_start` on, the first byte of the arrays in the file.
    num_bytes: bytes from there on, whole pages. crc32: of these.
    """

    path: Path
    place: str
    layers: "tuple[StoredLayer, ...]"
    offsets: tuple[tuple[int, ...], ...]
    data_start: int
    num_bytes: int
    crc32: int

    def arrays(self, memory: "Tensor") -> "list[list[Tensor]]":
        """Return the bytes of the arrays of each layer in `memory`, [num_bytes] uint8."""
        return [
            [
                memory[start : start + spec.num_bytes]
                for spec, start in zip(layer.arrays, starts, strict=True)
            ]
            for layer, starts in zip(self.layers, self.offsets, strict=True)
        ]


class PackedFolder:
    """Folder of the packed layers of one model; any number of processes may use it at once.

    root: folder of all models. identity: everything that the layout depends on, as JSON values.
    create: make the folder if it is missing. Raises `UsageError` if the folder cannot be made, or
    if all users may write to it.
    """

    def __init__(self, root: Path, identity: Mapping[str, Any], *, create: bool = True) -> None:
        text = json.dumps(identity, sort_keys=True)
        self.root = root
        self.path = root / hashlib.sha256(text.encode()).hexdigest()[:32]
        if not create:
            return
        try:
            make_folder(self.path, _FOLDER_MODE)
            if not (self.path / _IDENTITY).exists():
                replace_json(self.path / _IDENTITY, dict(identity))
            os.utime(self.path)  # the time of the last use
            is_open = self.path.stat().st_mode & stat.S_IWOTH
        except OSError as error:
            raise self._unusable(error) from error
        if is_open:
            raise UsageError(
                f"{self.path} is writable by all users, so its contents cannot be trusted; run "
                f"chmod o-w on it, or name another folder with {option('packed_dir')}"
            )

    @classmethod
    def of_model(
        cls,
        config: EngineConfig,
        model: RunnableConfig,
        files: Sequence[Path],
        arithmetic: Mapping[str, object],
        *,
        create: bool = True,
    ) -> "PackedFolder":
        """Return the folder of a model, the same for `plan` and a run; it may be empty.

        files: of the checkpoint. arithmetic: facts that decide the layout, see `Device.arithmetic`.
        Raises `UsageError` if there is no place for it.
        """
        root = config.packed_dir or private_folder("packed")
        if root is None:
            raise UsageError(
                "the user's cache folder cannot be used for packed weights; name another with "
                f"{option('packed_dir')}"
            )
        identity = {
            "files": stamps(files),
            **model_identity(model),
            **arithmetic,
            "activations": config.activations,
        }
        return cls(Path(root), identity, create=create)

    def find(self, name: str) -> PackedEntry | None:
        """Return the entry of a name, None if it is missing, its header is damaged, or it is the
        file of another layer or model."""
        path = self._path_of(name)
        try:
            entry = read_entry(path)
        except _NO_ENTRY:
            return None
        return entry if entry.place == self._place_of(name) else None

    def sizes(self, names: Sequence[str]) -> list[int] | None:
        """Return the bytes of the entries of these names, None unless all are there."""
        try:
            return [_read_header(self._path_of(name))[2] for name in names]
        except _NO_ENTRY:
            return None

    def write(self, name: str, layers: "Sequence[tuple[StoredLayer, Sequence[Bytes]]]") -> None:
        """Write an entry: layers with the bytes of their arrays.

        Raises `UsageError` for a disk that is full or cannot be written.
        """
        chunks: list[memoryview] = []
        offsets, end = [], 0
        for _, arrays in layers:
            starts = []
            for array in arrays:
                gap = -end % _LINE_BYTES
                starts.append(end + gap)
                chunks += [memoryview(bytes(gap)), array.data]
                end += gap + array.size
            offsets.append(starts)
        gap = -end % PAGE_BYTES
        chunks.append(memoryview(bytes(gap)))
        num_bytes = end + gap
        crc32 = 0
        for chunk in chunks:
            crc32 = zlib.crc32(chunk, crc32)
        facts = {
            "place": self._place_of(name),
            "layers": [[layer.description, layer.arrays] for layer, _ in layers],
            "offsets": offsets,
            "num_bytes": num_bytes,
            "crc32": crc32,
        }
        text = json.dumps(facts).encode()
        numbers = (each.to_bytes(_LENGTH_BYTES, "little") for each in (len(text), zlib.crc32(text)))
        header = b"".join((_MAGIC, *numbers, text))
        path = self._path_of(name)
        try:
            replace_file(path, [header, bytes(-len(header) % PAGE_BYTES), *chunks])
            _forget_pages(path)
        except OSError as error:
            raise self._unusable(error) from error

    def speeds(self) -> PassSpeeds | None:
        """Return the measured speeds, None if there are none."""
        with suppress(*_NO_ENTRY):
            return PassSpeeds(**json.loads((self.path / _SPEEDS).read_bytes()))
        return None

    def keep_speeds(self, speeds: PassSpeeds) -> None:
        """Write measured speeds; without room for them they are measured again."""
        with suppress(OSError):
            replace_json(self.path / _SPEEDS, asdict(speeds))

    def check_room(self, num_bytes: int, max_bytes: int | None = None) -> None:
        """Raise `UsageError` unless `num_bytes` more can be written.

        Other models are removed, the least recently used first, if all would take more than
        `max_bytes`.
        """
        if max_bytes is not None:
            if num_bytes + self.num_bytes > max_bytes:
                raise UsageError(
                    f"the packed weights take {_gib(num_bytes + self.num_bytes)}, more than "
                    f"{option('packed_bytes')} {_gib(max_bytes)}; raise it, or leave it out"
                )
            self._trim(max_bytes - num_bytes)
        free = shutil.disk_usage(self.path).free
        if num_bytes > free:
            raise UsageError(
                f"the packed weights need {_gib(num_bytes)} in {self.root}, where {_gib(free)} are "
                f"free; free some, or name a folder on another disk with {option('packed_dir')}"
            )

    @property
    def num_bytes(self) -> int:
        """Bytes of the files of this model."""
        return _bytes_in(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, so that one process packs an entry."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path / _LOCK, flags, PRIVATE_MODE)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            with suppress(OSError):  # a file system without locks: both pack the same bytes
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _trim(self, max_bytes: int) -> None:
        models = packed_models(self.root)
        total = sum(size for _, size in models)
        for path, size in models:
            if total <= max_bytes:
                break
            if path != self.path:
                shutil.rmtree(path, ignore_errors=True)
                total -= size

    def _path_of(self, name: str) -> Path:
        return self.path / f"{name}{_ENDING}"

    def _place_of(self, name: str) -> str:
        return f"{self.path.name}/{name}"

    def _unusable(self, error: OSError) -> UsageError:
        if error.errno == errno.ENOSPC:
            return UsageError(
                f"the disk with {self.path} is full; what is packed so far is kept. Free some "
                f"space, or name a folder on another disk with {option('packed_dir')}"
            )
        return UsageError(
            f"packed weights cannot be written to {self.path} ({error.strerror}); name another "
            f"folder with {option('packed_dir')}"
        )


def packed_models(root: Path) -> list[tuple[Path, int]]:
    """Return folder and bytes of each packed model, the least recently used first."""
    found = []
    with suppress(OSError):
        for path in root.iterdir():
            if (path / _IDENTITY).is_file():
                found.append((path.stat().st_mtime_ns, path, _bytes_in(path)))
    return [(path, size) for _, path, size in sorted(found)]


def _bytes_in(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.glob(f"*{_ENDING}"))


def read_entry(path: Path) -> PackedEntry:
    """Return the entry of a file.

    Raises one of `_NO_ENTRY` for a file that is no whole entry.
    """
    # Here: `plan` reads sizes and speeds only, without torch.
    from pagedrun.kernels.stored_layers import ArraySpec, StoredLayer

    facts, data_start, num_bytes = _read_header(path)
    layers = tuple(
        StoredLayer(description, tuple(ArraySpec(kind, tuple(shape)) for kind, shape in specs))
        for description, specs in facts["layers"]
    )
    offsets = tuple(tuple(map(int, starts)) for starts in facts["offsets"])
    for layer, starts in zip(layers, offsets, strict=True):
        for spec, start in zip(layer.arrays, starts, strict=True):
            if not 0 <= start <= start + spec.num_bytes <= num_bytes:
                raise ValueError("an array beyond the end of the file")
    place, crc32 = str(facts["place"]), int(facts["crc32"])
    return PackedEntry(path, place, layers, offsets, data_start, num_bytes, crc32)


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Return the facts of an entry, the first byte of its arrays, and their bytes.

    Raises `OSError` and `ValueError` for a file that is no whole entry.
    """
    with open_regular(path) as file:
        magic = file.read(len(_MAGIC))
        length, crc32 = (int.from_bytes(file.read(_LENGTH_BYTES), "little") for _ in range(2))
        if magic != _MAGIC or length > _MOST_HEADER_BYTES:
            raise ValueError("not a file of packed layers")
        text = file.read(length)
        if zlib.crc32(text) != crc32:
            raise ValueError("a damaged header")
        facts = json.loads(text)
        size = os.fstat(file.fileno()).st_size
    data_start = -(-(len(_MAGIC) + 2 * _LENGTH_BYTES + length) // PAGE_BYTES) * PAGE_BYTES
    num_bytes = int(facts["num_bytes"])
    if size != data_start + num_bytes:
        raise ValueError("a file of another size")
    return facts, data_start, num_bytes


def _forget_pages(path: Path) -> None:
    """Drop a file from the page cache, where files of other programs have better use."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
