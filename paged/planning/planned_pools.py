"""PlannedPools: the memory for keys and values of a run that is only planned."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import LayerSpec


@dataclass(frozen=True, slots=True)
class PlannedPools:
    """A pool for each group of layers.

    num_blocks, windows: of each group. bytes_per_token: what a token takes in all of them.
    bytes_read: what attention reads of a token in all layers with a window, or with None.
    """

    num_blocks: Seq[int]
    windows: Seq[int | None]
    bytes_per_token: int
    bytes_read: Mapping[int | None, int]

    @classmethod
    def of(
        cls, network: DecoderSpec[LayerSpec], specs: Seq[KVCacheSpec], num_blocks: Seq[int]
    ) -> "PlannedPools":
        """Return the pools of a network whose groups keep `specs`, with so many blocks each."""
        return cls(
            num_blocks,
            [spec.window for spec in specs],
            sum(spec.bytes_per_token for spec in specs),
            network.bytes_read(specs),
        )
