"""CodeCache: machine code of a kernel on disk, in Numba's files, with a digest after each.

Numba unpickles its files as they are and calls what it finds. Here a file that is cut, changed or
of other sources counts as missing: its kernel is compiled again, and the file replaced. Of several
processes that miss the same code, one compiles it, and the others wait for it.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

_DIGEST_BYTES = 16
_NAME_BYTES = 6  # of the number in a file's name


class CodeCache(FunctionCache):  # type: ignore[misc]
    """Cache of the machine code of `function`, an entry for each list of argument types.

    sources: digest of further files that the code is made of. Raises `RuntimeError` if there is no
    folder for it.
    """

    def __init__(self, function: Callable[..., Any], sources: str = "") -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp(), sources
        self._cache_file = _CheckedFiles(self.cache_path, self._impl.filename_base, stamp)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the code for these argument types; without room for it, it is compiled again."""
        with suppress(OSError):
            super().save_overload(sig, data)

    @contextmanager
    def turn(self, sig: Any, target: Any) -> Iterator[None]:
        """Wait until no other process compiles for these argument types; others wait in turn.

        Without a wait if the code is there. The lock ends with the process that holds it.
        """
        with ExitStack() as held:
            # A kernel that is compiled as a part of another has Numba's lock already, for which
            # another thread that has the turn may be waiting.
            if not global_compiler_lock.is_locked():
                with suppress(OSError):  # nothing can be written here: each compiles for itself
                    self._impl.locator.ensure_cache_path()
                    held.enter_context(
                        self._cache_file.turn(self._index_key(sig, target.codegen()))
                    )
            yield


class CachedKernel(CPUDispatcher):  # type: ignore[misc]
    """Entry point whose machine code is read from a `CodeCache`, or compiled by one process."""

    @classmethod
    def of(cls, dispatcher: Any, sources: str = "") -> Any:
        """Return a dispatcher as a kernel with a cache: Numba chooses the class that it makes."""
        dispatcher.__class__ = cls
        with suppress(RuntimeError, AttributeError):  # no cache folder; or another Numba
            dispatcher._cache = CodeCache(dispatcher.py_func, sources)
        return dispatcher

    def compile(self, sig: Any) -> Any:
        """Return the entry point for these argument types."""
        cache = self._cache
        if not isinstance(cache, CodeCache):
            return super().compile(sig)
        with cache.turn(sig, self.targetctx):
            return super().compile(sig)


class _CheckedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """Index and code files of a kernel, with a digest of stamp and contents at their ends.

    The name of a code file is that of its key, so that two processes that write at a time cannot
    take each other's code for their own.
    """

    def save(self, key: Any, data: Any) -> None:
        """Write the code of a key."""
        name = self._data_name(_number(key))
        self._save_data(name, data)
        with _locked(self._index_path):
            self._save_index({**self._load_index(), key: name})

    @contextmanager
    def turn(self, key: Any) -> Iterator[None]:
        """Hold the lock of a key, unless its code is there. Raises `OSError` if none can be."""
        if key in self._load_index():
            yield
        else:
            with _locked(self._data_path(self._data_name(_number(key)))):
                yield

    def _load_index(self) -> Any:
        return super()._load_index() if self._is_whole(self._index_path) else {}

    def _load_data(self, name: str) -> Any:
        if not self._is_whole(self._data_path(name)):
            raise FileNotFoundError(name)  # Numba compiles the code of such an entry
        return super()._load_data(name)

    def _is_whole(self, path: str) -> bool:
        try:
            data = Path(path).read_bytes()
        except OSError:
            return False
        return data[-_DIGEST_BYTES:] == self._digest(data[:-_DIGEST_BYTES])

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[BinaryIO]:
        contents = BytesIO()
        yield contents
        with super()._open_for_write(filepath) as file:
            file.write(contents.getvalue() + self._digest(contents.getvalue()))

    def _digest(self, contents: bytes) -> bytes:
        stamp = repr((self._version, self._source_stamp)).encode()
        return hashlib.blake2b(stamp + contents, digest_size=_DIGEST_BYTES).digest()


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock of a file, which ends with the process; raise `OSError` if none can be made."""
    with ExitStack() as opened:
        while True:
            file = opened.enter_context(open(f"{path}.lock", "w"))
            with suppress(OSError):  # a file system without locks: the code may be compiled twice
                fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                    break  # else the one that had it has removed it
        try:
            yield
        finally:
            with suppress(OSError):  # the folder may be gone; the lock ends all the same
                os.unlink(file.name)


def _number(key: Any) -> int:
    number = hashlib.blake2b(repr(key).encode(), digest_size=_NAME_BYTES).digest()
    return int.from_bytes(number, "big")
