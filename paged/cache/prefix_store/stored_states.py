"""StoredStates: states of recurrent layers in the store: what a run finds, takes and leaves."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from pagedrun.paged.cache.prefix_store.entry import DamagedEntryError, StoredPrefix
from pagedrun.paged.cache.prefix_store.identity import StoreIdentity
from pagedrun.paged.cache.prefix_store.index import PrefixIndex
from pagedrun.paged.cache.prefix_store.store_files import StoreFiles
from pagedrun.paged.cache.state_cache import StateCache
from pagedrun.paged.values.block_key import BlockKey
from pagedrun.paged.values.planned_request import PlannedRequest

Array = TypeVar("Array")


class StoredStates:
    """The states behind blocks at which rows begin, a file each."""

    def __init__(
        self,
        files: StoreFiles,
        index: PrefixIndex,
        identity: StoreIdentity,
        states: StateCache,
        block_size: int,
    ) -> None:
        self._files = files
        self._index = index
        self._identity = identity
        self._states = states
        self._block_size = block_size

    def num_stored_tokens(self, row: PlannedRequest) -> int:
        """Return how many of the tokens to be stored of a row lie before its last state."""
        return max(self._points(row), default=0)

    def note(self, row: PlannedRequest, end: int, slot: int) -> None:
        """Store the state behind a chunk of a row that ends at token `end`, if rows begin there.

        slot: where it lies now.
        """
        if end not in self._points(row):
            return
        key = row.block_keys[end // self._block_size - 1]
        if self._index.state_behind(key.digest) is None:
            start = end - self._block_size
            entry = StoredPrefix(self._identity, key.parent, start, key.token_ids, has_state=True)
            self._files.write(entry, _named(self._states.read([slot])))

    def longest(self, digests: Sequence[bytes]) -> int:
        """Return behind how many blocks, named by their digests, there is a state; 0 for none."""
        counts = range(len(digests), 0, -1)
        return next((count for count in counts if self._index.state_behind(digests[count - 1])), 0)

    def read(self, digest: bytes) -> tuple[str, list[Tensor]] | None:
        """Return the file with the state behind a block, and its tensors; None, and the file
        dropped, if it is of no use."""

        def check(entry: StoredPrefix, tensors: Mapping[str, Tensor]) -> None:
            if BlockKey.after(entry.parent, entry.token_ids).digest != digest:
                raise DamagedEntryError("its tokens have changed")
            shapes = {name: (tuple(each.shape), each.dtype) for name, each in tensors.items()}
            if shapes != _named(self._states.shapes(1)):
                raise DamagedEntryError("its tensors do not have the model's shape")

        name = self._index.state_behind(digest)
        tensors = None if name is None else self._files.read(name, check)
        if name is None or tensors is None:
            return None
        return name, [tensors[each] for each in _named(tensors)]

    def _points(self, row: PlannedRequest) -> list[int]:
        """Return the tokens behind which later rows begin, of those to be stored of a row."""
        points, point = [], row.state_points
        while point is not None:
            points.append(point.num_blocks * self._block_size)
            point = point.next
        return [end for end in points if 0 < end <= row.num_stored_tokens]


def _named(arrays: Iterable[Array]) -> dict[str, Array]:
    """Return arrays, or their shapes, by what they are called in a file."""
    return {f"state.{number}": each for number, each in enumerate(arrays)}
