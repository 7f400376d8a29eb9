"""StoreFiles: what one run reads and writes of the store's files, and what it counts and tells."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import load, save
from torch import Tensor

from pagedrun.paged.cache.prefix_store.entry import DamagedEntryError, StoredPrefix
from pagedrun.paged.cache.prefix_store.folder import StoreFolder
from pagedrun.paged.cache.prefix_store.index import PrefixIndex
from pagedrun.paged.values.option_names import option


@dataclass(slots=True)
class StoreCounts:
    """What became of the store in a run: tokens, files, bytes, seconds.

    `achievable_tokens` are tokens found in the store that no row of the run had before: what the
    plan, which knows nothing of the store, has not counted as achievable.
    """

    loaded_tokens: int = 0
    stored_tokens: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0
    ignored_files: int = 0
    seconds: float = 0.0
    achievable_tokens: int = 0


class StoreFiles:
    """Reads entries whole and checked, writes them below a limit, and keeps `index` true to both.

    `max_bytes` is what the store may come to hold. Nothing that goes wrong stops a run: `warn`
    is told of the first thing.
    """

    def __init__(
        self,
        folder: StoreFolder,
        index: PrefixIndex,
        max_bytes: int,
        warn: Callable[[str], None],
    ) -> None:
        self.counts = StoreCounts()
        self.can_write = True
        self._folder = folder
        self._index = index
        self._max_bytes = max_bytes
        self._warn = warn
        self._has_warned = False
        self._used: set[str] = set()  # files counted as used in this run

    def read(
        self, name: str, check: Callable[[StoredPrefix, Mapping[str, Tensor]], None]
    ) -> dict[str, Tensor] | None:
        """Return the tensors of a file; None, and the file dropped from the index, if it is of no
        use. `check` raises `DamagedEntryError` for what a run cannot use."""
        try:
            data = (self._folder.path / name).read_bytes()
            entry = StoredPrefix.verified(data, name)
            tensors = load(data)
            check(entry, tensors)
        except (DamagedEntryError, OSError) as error:
            self._index.drop(name)
            if not isinstance(error, FileNotFoundError):  # another run has removed it
                self.ignore(f"{told(name, error)}; its tokens are recomputed")
            return None
        self.counts.loaded_bytes += len(data)
        return tensors

    def write(self, entry: StoredPrefix, tensors: Mapping[str, Tensor]) -> str | None:
        """Write one entry; return its name, None if it was not written."""
        if not all(map(is_finite, tensors.values())):
            return None  # what led to NaN must not be found by anybody
        data = save(dict(tensors), metadata=entry.metadata())
        if len(data) > self._max_bytes:
            return None
        name = entry.file_name(data)
        try:
            self._folder.write(name, data)
            if self._folder.num_bytes() > self._max_bytes:
                self._folder.trim(self._max_bytes)
        except OSError as error:
            self.can_write = False
            self.tell(f"nothing more is stored in it ({error.strerror}); the run continues")
            return None
        self._index.add(name, entry)
        self.counts.stored_bytes += len(data)
        return name

    def note_use(self, names: Sequence[str]) -> None:
        """Count one use in this run of each of the entries of a prefix, in the order of its
        tokens."""
        self._folder.date(names)
        new = [name for name in names if name not in self._used]
        self._used.update(new)
        self._folder.note_use(new)

    def ignore(self, what: str, num_files: int = 1) -> None:
        """Count files that are of no use, and tell of them."""
        self.counts.ignored_files += num_files
        self.tell(what)

    def tell(self, what: str) -> None:
        """Warn of the first thing that is wrong; there may be thousands like it."""
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"{option('prefix_store')} {self._folder.path}: {what}")


def is_finite(tensor: Tensor) -> bool:
    """Return whether there is neither NaN nor infinity in keys, values, scales or states.

    The extremes tell, as NaN is one wherever it occurs; looking at each takes twenty times as long.
    """
    if tensor.dtype == torch.int8 or not tensor.numel():
        return True
    if tensor.dtype == torch.float8_e4m3fn:  # has no order on a CPU; all ones but the sign is NaN
        return bool((tensor.view(torch.uint8) & 0x7F != 0x7F).all())
    return bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())


def told(name: str, error: Exception) -> str:
    """Return what a user reads of a file that could not be used."""
    if isinstance(error, OSError):
        return f"{name} cannot be read ({error.strerror})"
    return f"{name} is damaged and is ignored ({error})"
