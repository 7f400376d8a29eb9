"""PlannedPools: the memory for keys and values of a run that is only planned."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.cache.pool_shape import PoolShape
from pagedrun.paged.models.network.network import Network
from pagedrun.paged.planning.sizing.slot_sizing import SlotSizes


@dataclass(frozen=True, slots=True)
class PlannedPools:
    """A pool for each group of layers.

    bytes_read: what attention reads of a token in all layers with a window, or with None. states:
    of recurrent layers, if there are any.
    """

    shapes: tuple[PoolShape, ...]
    bytes_read: Mapping[int | None, int]
    states: SlotSizes | None = None

    @classmethod
    def of(
        cls,
        network: Network,
        specs: Seq[KVCacheSpec],
        sizes: Seq[int],
        states: SlotSizes | None = None,
    ) -> "PlannedPools":
        """Return the pools of a network whose groups keep `specs`, with so many blocks each."""
        return cls(PoolShape.of_all(specs, sizes), network.bytes_read(specs), states)

    @property
    def bytes_per_token(self) -> int:
        """What a token takes in all groups."""
        return sum(shape.bytes_per_token for shape in self.shapes)
