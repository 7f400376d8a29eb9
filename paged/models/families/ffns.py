"""Feed-forward parts under the names of Llama's tensors."""

from collections.abc import Callable

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.linears.registry import linear_method
from pagedrun.paged.models.network.ffn_spec import FfnSpec
from pagedrun.paged.models.network.linear_spec import LinearMethod, LinearSpec, Projection
from pagedrun.paged.models.network.mlp_spec import MlpSpec

FfnOfLayer = Callable[[int], FfnSpec]


def gated_mlps(config: JsonObject, *, has_bias: bool = False) -> FfnOfLayer:
    """Return the feed-forward part of each layer where all are dense."""
    method = linear_method(config)
    hidden = config.integer("hidden_size", 1, 2**20)
    inner = config.integer("intermediate_size", 1, 2**22)
    return lambda layer: gated_mlp(
        f"model.layers.{layer}.mlp", hidden, inner, method, has_bias=has_bias
    )


def gated_mlp(
    prefix: str, hidden: int, inner: int, method: LinearMethod, *, has_bias: bool = False
) -> MlpSpec:
    """Return a dense part whose tensors have names that begin with `prefix`."""
    gate, up = Projection(f"{prefix}.gate_proj", inner), Projection(f"{prefix}.up_proj", inner)
    down = Projection(f"{prefix}.down_proj", hidden)
    return MlpSpec(
        "silu",
        gate_up=LinearSpec((gate, up), hidden, has_bias, method),
        down=LinearSpec((down,), inner, has_bias, method),
    )
