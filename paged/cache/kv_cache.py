"""KVCache: keys and values of every layer, group by group."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import torch

from pagedrun.kernels.kv_layer import KVLayer
from pagedrun.paged.cache.block_transfer import BlockTransfer
from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.cache.kv_memory import KVMemory
from pagedrun.paged.cache.kv_place import KVPlace


class KVCache:
    """The memories of a model's groups of layers; a block has as many tokens in each.

    A block's id is that of its group's pool: the same number is another block in another group.
    """

    def __init__(self, groups: Seq[KVMemory]) -> None:
        self.block_size = groups[0].block_size
        self.groups = tuple(groups)

    @property
    def num_bytes(self) -> int:
        """Bytes of all pools with their scales, host blocks not counted."""
        return sum(each.num_bytes for each in self.groups)

    @property
    def specs(self) -> tuple[KVCacheSpec, ...]:
        """What the layers of each group keep of a token."""
        return tuple(each.spec for each in self.groups)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """What each group is stored in."""
        return tuple(each.blocks.dtype for each in self.groups)

    def layer(self, place: KVPlace) -> KVLayer:
        """Return a layer's part of its group's pool."""
        return self.groups[place.group].layer(place.layer)

    def transfer(self, transfers: Iterable[BlockTransfer]) -> None:
        """Move blocks, those of each group in the order given."""
        transfers = list(transfers)
        for group, memory in enumerate(self.groups):
            memory.transfer(each for each in transfers if each.group == group)
