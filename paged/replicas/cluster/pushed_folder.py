"""PushedFolder: a model's folder on its way to nodes that do not have it, in pieces."""

import fcntl
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedrun.kernels.environment.code_folder import private_folder
from pagedrun.paged.values.errors import ModelError, option

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
