"""Linear: a linear layer as a backend holds it."""

from typing import Protocol

from torch import Tensor


class Linear(Protocol):
    """`y = x @ weight.T + bias`."""

    @property
    def in_features(self) -> int:
        """Elements of a row of x."""
        ...

    @property
    def out_features(self) -> int:
        """Elements of a row of y."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of the weight and the bias, without the padding of a layout."""
        ...

    @property
    def is_packed(self) -> bool:
        """Whether the weight lies in a layout of the backend's own, beside the one given."""
        ...

    @property
    def row_invariant(self) -> bool:
        """Whether a row of y has the same bytes whatever the number of rows."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        ...
