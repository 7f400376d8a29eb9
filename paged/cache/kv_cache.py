"""KVCache: keys and values of every layer, group by group, and the states of recurrent layers."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.paged.cache.block_transfer import BlockTransfer
from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.cache.kv_memory import KVMemory
from pagedrun.paged.cache.kv_place import KVPlace
from pagedrun.paged.cache.pool_shape import PoolShape
from pagedrun.paged.cache.state_cache import StateCache
from pagedrun.paged.cache.state_objects import StateObjects
from pagedrun.paged.cache.state_place import StatePlace


class KVCache:
    """The memories of a model's groups of layers; a block has as many tokens in each.

    A block's id is that of its group's pool: the same number is another block in another group.
    `states`, of a model with recurrent layers, or all that a library keeps of sequences, count as
    the group behind the last.
    """

    def __init__(
        self, groups: Seq[KVMemory], states: StateCache | StateObjects | None = None
    ) -> None:
        self.block_size = groups[0].block_size
        self.groups = tuple(groups)
        self.states = states

    @property
    def num_bytes(self) -> int:
        """Bytes of all pools with their scales, host blocks and states not counted."""
        return sum(each.num_bytes for each in self.groups)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block of each group."""
        return sum(each.bytes_per_block for each in self.groups)

    @property
    def specs(self) -> tuple[KVCacheSpec, ...]:
        """What the layers of each group keep of a token."""
        return tuple(each.spec for each in self.groups)

    @property
    def shapes(self) -> tuple[PoolShape, ...]:
        """The pool of each group."""
        return PoolShape.of_all(self.specs, [each.num_blocks for each in self.groups])

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """What each group is stored in."""
        return tuple(each.blocks.dtype for each in self.groups)

    def layer(self, place: KVPlace) -> KVLayer:
        """Return a layer's part of its group's pool."""
        return self.groups[place.group].layer(place.layer)

    def state(self, place: StatePlace) -> tuple[Tensor, ...]:
        """Return the arrays of a recurrent layer, [num_slots, *shape], in its spec's order."""
        assert isinstance(self.states, StateCache), "made without states of layers"
        return self.states.layer(place.layer)

    def transfer(self, transfers: Iterable[BlockTransfer]) -> None:
        """Move blocks, and slots of states, those of each group in the order given."""
        transfers = list(transfers)
        memories = self.groups if self.states is None else (*self.groups, self.states)
        for group, memory in enumerate(memories):
            memory.transfer(each for each in transfers if each.group == group)
