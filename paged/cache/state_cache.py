"""StateCache: the states of recurrent layers, a slot a sequence, allocated once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pagedrun.paged.cache.block_memory import BlockMemory
from pagedrun.paged.cache.cache_device import CacheDevice
from pagedrun.paged.cache.state_spec import StateArray, StateSpec


class StateCache(BlockMemory):
    """Slots of a pool, and host slots to swap out to; a slot moves as a block does.

    specs: one for each recurrent layer, all alike. Slots are not filled: a sequence begins with
    zeros because `StateInputs` say so. Raises `ValueError` for layers whose states differ.
    """

    def __init__(
        self, specs: Sequence[StateSpec], num_slots: int, num_host_slots: int, device: CacheDevice
    ) -> None:
        if len(set(specs)) != 1:
            raise ValueError("recurrent layers whose states differ: one kind is all there is")
        host, pinned = torch.device("cpu"), device.pins_host_memory

        def allocate(array: StateArray, count: int, place: torch.device, pin: bool) -> Tensor:
            shape = (len(specs), 1, count, *array.shape)
            return torch.empty(
                shape, dtype=getattr(torch, array.dtype), device=place, pin_memory=pin
            )

        pools = [
            (
                allocate(array, num_slots, device.torch_device, False),
                allocate(array, num_host_slots, host, pinned),
            )
            for array in specs[0].arrays
        ]
        super().__init__(pools, device)
        self._layers = [tuple(pool[layer, 0] for pool, _ in pools) for layer in range(len(specs))]

    @property
    def num_slots(self) -> tuple[int, int]:
        """Slots of the pool, and those on the host."""
        return self.num_blocks, self.num_host_blocks

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of what all layers keep of a sequence."""
        return self.num_bytes // self.num_blocks

    def layer(self, index: int) -> tuple[Tensor, ...]:
        """Return the arrays of a recurrent layer, [num_slots, *shape], in its spec's order."""
        return self._layers[index]
