"""MLPs, gated and plain, with weights."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend
from pagedrun.paged.models.checkpoint.weight_source import WeightSource
from pagedrun.paged.models.modules.mlp import Activation, MlpSpec, PlainMlpSpec
from pagedrun.paged.models.modules.moe import ClippedSwiglu


def activation(kind: Activation | ClippedSwiglu, kernels: Backend) -> Callable[[Tensor], Tensor]:
    """Return the op for `activation(gate) * up`, with gate and up side by side."""
    if isinstance(kind, ClippedSwiglu):
        return partial(kernels.clipped_swiglu, limit=kind.limit, alpha=kind.alpha)
    return {
        "silu": kernels.silu_mul,
        "gelu_tanh": kernels.gelu_tanh_mul,
        "gelu": kernels.gelu_mul,
    }[kind]


class Mlp:
    """`down(activation(gate) * up)`, with gate and up as one product."""

    def __init__(self, spec: MlpSpec, source: WeightSource) -> None:
        self._gate_up = spec.gate_up.load(source)
        self._down = spec.down.load(source)
        self._activate = activation(spec.activation, source.kernels)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return self._gate_up.num_bytes + self._down.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, hidden_size] to the same shape and dtype."""
        return self._down(self._activate(self._gate_up(x)))


class PlainMlp:
    """`down(activation(up(x)))`."""

    def __init__(self, spec: PlainMlpSpec, source: WeightSource) -> None:
        self._up = spec.up.load(source)
        self._down = spec.down.load(source)
        self._kernels, self._activation = source.kernels, spec.activation

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return self._up.num_bytes + self._down.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, hidden_size] to the same shape and dtype."""
        if self._activation == "gelu":
            return self._kernels.gelu_mlp(self._up, self._down, x)
        inner = self._up(x)
        if self._activation == "gelu_tanh":
            return self._down(self._kernels.gelu_tanh(inner))
        return self._down(torch.relu(inner))
