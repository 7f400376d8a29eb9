"""Ffn: the feed-forward part of a layer, with its weights."""

from typing import Protocol

from torch import Tensor

from pagedrun.paged.models.layers.mixture import Mixture
from pagedrun.paged.models.layers.mlp import Mlp
from pagedrun.paged.models.network.ffn_spec import FfnSpec
from pagedrun.paged.models.network.mixtures.mixture_spec import MixtureSpec
from pagedrun.paged.models.network.mlp_spec import MlpSpec
from pagedrun.paged.models.weight_source import WeightSource


class Ffn(Protocol):
    """Treats each token by itself."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, hidden_size] to the same shape and dtype."""
        ...


def load_ffn(spec: FfnSpec, source: WeightSource) -> Ffn:
    """Return what a description describes, with its weights; `TypeError` for an unknown kind."""
    if isinstance(spec, MlpSpec):
        return Mlp(spec, source)
    if isinstance(spec, MixtureSpec):
        return Mixture(spec, source)
    raise TypeError(f"no layer computes {type(spec).__name__}")
