"""Descriptions of poolers, without torch: poolings, steps behind them, and scores.

A pooler makes one vector of the hidden states of a text, then applies steps to it: linear layers
with activations, norms, the rows of a head that belong to some tokens.
"""

from dataclasses import dataclass
from typing import Literal

from pagedrun.paged.models.modules.norm import LayerNormSpec
from pagedrun.paged.values.pooling import Pooling

StepActivation = Literal["identity", "tanh", "relu", "gelu"]
Scores = Literal["vector", "identity", "sigmoid", "softmax"]


@dataclass(frozen=True, slots=True)
class DenseStep:
    """`activation(weight @ x + bias)`; the tensors are in `folder`, under the model's own.

    has_bias None: as the file has it.
    """

    name: str
    activation: StepActivation = "identity"
    has_bias: bool | None = None
    folder: str = ""


@dataclass(frozen=True, slots=True)
class NormStep:
    """Layer norm of a vector, with a tensor of the model's folder."""

    norm: LayerNormSpec


@dataclass(frozen=True, slots=True)
class TokenStep:
    """Logits of two tokens, `no` and `yes`, of the head called `name`."""

    name: str
    token_ids: tuple[int, int] = (0, 0)


Step = DenseStep | NormStep | TokenStep


@dataclass(frozen=True, slots=True)
class PoolerSpec:
    """Description of a pooler.

    `poolings` are made side by side. `scores`: of the last step's numbers; "vector" for none.
    `labels` are the names of scores.
    """

    poolings: tuple[Pooling, ...]
    steps: tuple[Step, ...] = ()
    scores: Scores = "vector"
    normalizes: bool = False
    dimensions: int | None = None
    labels: tuple[str, ...] = ()

    @property
    def reads_all_tokens(self) -> bool:
        """True if the hidden states of all tokens are needed."""
        return not {*self.poolings} <= {Pooling.CLS, Pooling.LAST}
