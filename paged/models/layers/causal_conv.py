"""CausalConv: a depthwise convolution with its weights."""

from torch import Tensor

from pagedrun.kernels.state_inputs import StateInputs
from pagedrun.paged.models.network.recurrence.conv_spec import ConvSpec
from pagedrun.paged.models.weight_source import WeightSource


class CausalConv:
    """Lets each token see the few before it, channel by channel."""

    def __init__(self, spec: ConvSpec, source: WeightSource, *, activate: bool) -> None:
        self._kernels = source.kernels
        self._weight = source.tensor(spec.weight).squeeze(1)
        self._bias = None if spec.bias is None else source.tensor(spec.bias)
        self._activate = activate

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: Tensor, state: Tensor, inputs: StateInputs) -> Tensor:
        """Return the shape of x [num_tokens, num_channels], and bring the states up to date."""
        return self._kernels.causal_conv(x, self._weight, self._bias, state, inputs, self._activate)
