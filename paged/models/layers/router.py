"""Router: what chooses the experts of a mixture, with its weights."""

import torch
from torch import Tensor

from pagedrun.kernels.experts.routing import Routing
from pagedrun.paged.models.network.mixtures.router_spec import RouterSpec
from pagedrun.paged.models.weight_source import WeightSource


class Router:
    """A token's experts depend on the token alone."""

    def __init__(self, spec: RouterSpec, source: WeightSource) -> None:
        self._choice = spec.choice
        self._kernels = source.kernels
        self._dtype = torch.float32 if spec.in_float32 else source.dtype
        self._linear = spec.linear.load(source.of_dtype(self._dtype))
        self._correction: Tensor | None = None
        if spec.correction is not None:
            self._correction = source.tensor(spec.correction, torch.float32).flatten()

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        correction = 0 if self._correction is None else self._correction.nbytes
        return self._linear.num_bytes + correction

    def __call__(self, x: Tensor) -> Routing:
        """Return the experts of each token; x: [num_tokens, hidden_size]."""
        logits = self._linear(x.to(self._dtype))
        return self._kernels.route(logits, self._choice, self._correction)
