"""A linear layer whose weight may be repacked for the machine."""

from torch import Tensor
from torch.nn import functional


class PackedLinear:
    """`y = x @ weight.T + bias`.

    weight: [out_features, in_features]. bias: [out_features], same dtype, or None.
    A twin may keep the weight in a layout of its own and drop the one it was given; `is_packed`
    says whether it did. Here the weight is kept as it is. A twin may give each row the same bytes
    whatever the number of rows; this class is about values and promises none.
    """

    is_packed = False
    row_invariant = False

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = weight
        self._bias = bias
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        return functional.linear(x, self._weight, self._bias)
