"""HeadNorms: the norms of each head's query and key."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms that each head's query and key pass, before they are rotated or after.

    query, key: [head_dim], the weights. eps is added to the mean of squares. `after_rotation`: the
    weights multiply what has been rotated; the root mean square is the same before and after.
    """

    query: Tensor
    key: Tensor
    eps: float
    after_rotation: bool = False
