"""SideMixture: a mixture of experts beside a dense feed-forward part, with its weights."""

import torch
from torch import Tensor

from pagedrun.paged.models.layers.mixture import Mixture
from pagedrun.paged.models.layers.norm import Norm
from pagedrun.paged.models.network.mixtures.side_mixture_spec import SideMixtureSpec
from pagedrun.paged.models.weight_source import WeightSource


class SideMixture:
    """Adds what experts make of the residual stream to what the dense part made of it."""

    def __init__(self, spec: SideMixtureSpec, source: WeightSource) -> None:
        scales = source.tensor(spec.expert_scales.weight, torch.float32)
        self._mixture = Mixture(spec.mixture, source, scales)
        # In float32: the product has more digits than a weight.
        scale = source.tensor(spec.router_scale.weight, torch.float32)
        self._router_scale = scale * spec.router_factor
        self._norm = Norm(spec.norm, source)
        self._out_norm = Norm(spec.out_norm, source)
        self._dense_norm = Norm(spec.dense_norm, source)
        self._eps = spec.norm.eps
        self._dtype = source.dtype
        self._kernels = source.kernels

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        norms = (self._norm, self._out_norm, self._dense_norm)
        parts = self._mixture.num_bytes + self._router_scale.nbytes
        return parts + sum(norm.num_bytes for norm in norms)

    def __call__(self, dense: Tensor, residual: Tensor) -> Tensor:
        """Return the sum of both parts, in the model's dtype.

        dense: [num_tokens, hidden_size], what the dense part gives. residual: the same shape,
        float32, what it was given before its norm.
        """
        routed = self._kernels.rms_norm(residual, self._router_scale, self._eps, self._dtype)
        mixed = self._mixture(self._norm.alone(residual), routed)
        return self._dense_norm.alone(dense) + self._out_norm.alone(mixed)
