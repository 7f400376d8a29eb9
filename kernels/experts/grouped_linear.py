"""GroupedLinear: the linear layers of many experts, as a backend holds them."""

from typing import Protocol

from torch import Tensor


class GroupedLinear(Protocol):
    """`y = x @ weight[e].T + bias[e]`, where each row x has an expert e; or without biases."""

    @property
    def num_experts(self) -> int:
        """How many weights there are."""
        ...

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
        """Bytes of all weights and biases."""
        ...

    @property
    def row_invariant(self) -> bool:
        """Whether a row of y has the same bytes whoever else has the same expert."""
        ...

    def __call__(self, x: Tensor, starts: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Map rows to [num_rows, out_features], in the dtype of x.

        Rows are sorted by expert as `starts` says, see `ExpertRows`. Row i reads row `tokens[i]` of
        x [num_tokens, in_features]; None: x [num_rows, in_features] has a row for each. Weights of
        an expert without rows are not read.
        """
        ...
