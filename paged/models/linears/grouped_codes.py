"""GroupedCodes: what the formats with a few bits for each weight are brought into."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.paged.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True, eq=False)
class GroupedCodes:
    """Each column belongs to a group, which has a scale, and mostly a zero point, for each row.

    codes: [out_features, in_features] int8, signed. scales: [out_features, num_groups] float.
    zeros: the same, as signed as the codes, or None. `group_of`: [in_features], the group of each
    column; None where `group_size` neighbours are one.
    """

    codes: "Tensor"
    scales: "Tensor"
    zeros: "Tensor | None"
    group_size: int
    group_of: "Tensor | None" = None

    def weight(self, name: str, source: "WeightSource") -> "Tensor":
        """Return the matrix of a projection called `name`; raises `ModelError` as `source` does."""
        return source.dequantized(
            name,
            self.codes,
            self.scales,
            (1, self.group_size),
            zeros=self.zeros,
            group_of=self.group_of,
        )
