"""RotaryTables: the rotations of a model, one table for all layers that turn alike."""

import numpy as np
import torch
from torch import Tensor

from pagedrun.paged.models.network.query_temper import QueryTemper
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
        self._tables: dict[tuple[RopeConfig | None, int], Tensor] = {}

    def table(self, rope: RopeConfig | None, head_dim: int) -> Tensor:
        """Return cos and sin, [num_positions, 2, rotary_dim // 2] float32; see `rotary_table`.

        Without a rope they turn nothing.
        """
        key = (rope, head_dim)
        if key not in self._tables:
            self._tables[key] = self._made(rope, head_dim).to(self._device)
        return self._tables[key]

    def factors(self, temper: QueryTemper) -> Tensor:
        """Return what multiplies the query at each position, [num_positions] float32."""
        times = torch.arange(self._num_positions).numpy() // temper.length
        return torch.from_numpy(1 + temper.beta * np.log(1.0 + times)).float().to(self._device)

    def _made(self, rope: RopeConfig | None, head_dim: int) -> Tensor:
        if rope is None:
            unturned = torch.tensor([1.0, 0.0])[:, None]
            return unturned.repeat(self._num_positions, 1, head_dim // 2)
        return rotary_table(rope, head_dim, self._num_positions, self._max_position_embeddings)
