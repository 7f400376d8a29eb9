"""RotaryTables: the rotations of a model, one table for all layers that turn alike."""

import torch
from torch import Tensor

from pagedrun.paged.models.rope_config import RopeConfig
from pagedrun.paged.models.rotary import rotary_table


class RotaryTables:
    """Tables of `num_positions` positions on `device`, made when a layer first asks.

    `max_position_embeddings` is taken for `original_max_positions` where a rope has none.
    """

    def __init__(
        self, num_positions: int, max_position_embeddings: int, device: torch.device
    ) -> None:
        self._num_positions = num_positions
        self._max_position_embeddings = max_position_embeddings
        self._device = device
        self._tables: dict[tuple[RopeConfig, int], Tensor] = {}

    def table(self, rope: RopeConfig, head_dim: int) -> Tensor:
        """Return cos and sin, [num_positions, 2, rotary_dim // 2] float32; see `rotary_table`."""
        key = (rope, head_dim)
        if key not in self._tables:
            table = rotary_table(rope, head_dim, self._num_positions, self._max_position_embeddings)
            self._tables[key] = table.to(self._device)
        return self._tables[key]
