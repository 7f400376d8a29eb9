"""LayerInputs and InputGate: what each layer is given of the tokens, with their weights."""

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.paged.models.layers.mlp import activation
from pagedrun.paged.models.layers.norm import Norm
from pagedrun.paged.models.network.layer_inputs_spec import InputGateSpec, LayerInputsSpec
from pagedrun.paged.models.weight_source import WeightSource


class LayerInputs:
    """Gives every layer a vector for each token."""

    def __init__(self, spec: LayerInputsSpec, source: WeightSource) -> None:
        self._spec = spec
        # As it is: a table of gigabytes, of which a step reads a few rows.
        self._embedding = source.kept(spec.embedding.weight)
        self._projection = spec.projection.load(source)
        self._norm = Norm(spec.norm, source)
        self._scale = torch.tensor(spec.embedding.scale, dtype=source.dtype).item()

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        return self._embedding.nbytes + self._projection.num_bytes + self._norm.num_bytes

    def __call__(self, input_ids: Tensor, embedded: Tensor) -> Tensor:
        """Return the layers' inputs, [num_layers, num_tokens, size] in the model's dtype.

        input_ids: [num_tokens] int64. embedded: [num_tokens, hidden_size] in the model's dtype,
        what the first layer reads.
        """
        spec = self._spec
        projected = self._projection(embedded) * spec.projection_scale
        inputs = self._norm.alone(projected.view(-1, spec.size)).view(projected.shape)
        inputs += functional.embedding(input_ids, self._embedding) * self._scale
        inputs *= spec.scale
        return inputs.view(-1, spec.num_layers, spec.size).transpose(0, 1)


class InputGate:
    """`out_norm(out(activation(gate(residual)) * input))`."""

    def __init__(self, spec: InputGateSpec, source: WeightSource) -> None:
        self._gate = spec.gate.load(source)
        self._out = spec.out.load(source)
        self._out_norm = Norm(spec.out_norm, source)
        self._activate = activation(spec.activation, source.kernels)
        self._dtype = source.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        return self._gate.num_bytes + self._out.num_bytes + self._out_norm.num_bytes

    def __call__(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """Return what is to be added to the residual stream, in the model's dtype.

        residual: [num_tokens, hidden_size] float32. inputs: [num_tokens, size].
        """
        gate = self._gate(residual.to(self._dtype))
        return self._out_norm.alone(self._out(self._activate(torch.cat([gate, inputs], dim=1))))
