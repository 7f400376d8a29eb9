"""CodeCache: machine code of a kernel on disk, in Numba's files, with a digest after each.

Numba unpickles its files as they are and calls what it finds. Here a file that is cut, changed or
of other sources counts as missing: its kernel is compiled again, and the file replaced.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from numba.core.caching import FunctionCache, IndexDataCacheFile

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


class _CheckedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """Index and code files of a kernel, with a digest of stamp and contents at their ends.

    The name of a code file is that of its key, so that two processes that write at a time cannot
    take each other's code for their own.
    """

    def save(self, key: Any, data: Any) -> None:
        """Write the code of a key."""
        overloads = self._load_index()
        if key not in overloads:
            number = hashlib.blake2b(repr(key).encode(), digest_size=_NAME_BYTES).digest()
            overloads[key] = self._data_name(int.from_bytes(number, "big"))
            self._save_index(overloads)
        self._save_data(overloads[key], data)

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
