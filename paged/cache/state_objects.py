"""StateObjects: what a library keeps of sequences, an object of its own for each."""

from collections.abc import Iterable
from copy import deepcopy

from pagedrun.paged.cache.block_transfer import BlockTransfer


class StateObjects:
    """Slots like those of a `StateCache`, of at most `bytes_per_slot` each; none on the host.

    Their memory is the library's, which takes it as a sequence grows.
    """

    def __init__(self, num_slots: int, bytes_per_slot: int) -> None:
        self.num_slots = (num_slots, 0)
        self.bytes_per_slot = bytes_per_slot
        self._objects: dict[int, object] = {}

    @property
    def num_bytes(self) -> int:
        """The most bytes that all of them can take."""
        return self.num_slots[0] * self.bytes_per_slot

    def take(self, read_slot: int, write_slot: int) -> object:
        """Return what a chunk goes on from, for it to change: the object of a slot, or a copy if
        it is written to another one, where the first may be read again."""
        if read_slot == write_slot:
            return self._objects.pop(read_slot)
        return deepcopy(self._objects[read_slot])

    def put(self, write_slot: int, state: object) -> None:
        """Keep what a chunk leaves behind."""
        self._objects[write_slot] = state

    def transfer(self, transfers: Iterable[BlockTransfer]) -> None:
        """Move nothing: a sequence that gives way is computed again."""
        assert not list(transfers), "there is nowhere to move an object to"
