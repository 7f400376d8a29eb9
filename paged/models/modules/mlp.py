"""MLPs, gated and plain: descriptions and their reading from config.json."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import Part, StoredTensors
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.quant.registry import linear_method

Activation = Literal["silu", "gelu_tanh", "gelu"]
PlainActivation = Literal["gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Description of `down(activation(gate) * up)`; `gate_up` gives both side by side."""

    activation: Activation
    gate_up: LinearSpec
    down: LinearSpec

    @property
    def intermediate_size(self) -> int:
        """Elements of gate and of up."""
        return self.down.in_features

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        return self.gate_up, self.down

    @property
    def width(self) -> int:
        """Peak numbers of activation of a token: gate, up and their product."""
        return 3 * self.intermediate_size

    def stored_as(self, stored: StoredTensors) -> "MlpSpec":
        """Return the MLP itself, which has one layout."""
        return self


@dataclass(frozen=True, slots=True)
class PlainMlpSpec:
    """Description of `down(activation(up(x)))`, an MLP without a gate."""

    activation: PlainActivation
    up: LinearSpec
    down: LinearSpec

    @property
    def intermediate_size(self) -> int:
        """Elements of the activation."""
        return self.down.in_features

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        return self.up, self.down

    @property
    def width(self) -> int:
        """Peak numbers of activation of a token: before and behind the function."""
        return 2 * self.intermediate_size

    def stored_as(self, stored: StoredTensors) -> "PlainMlpSpec":
        """Return the MLP itself, which has one layout."""
        return self


GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")
FUSED_GATE_UP = ("gate_up_proj", "down_proj")
# Field of config.json for an activation, and its names there.
_ACTIVATIONS: dict[Activation, tuple[str, tuple[str, ...]]] = {
    "silu": ("hidden_act", ("silu", "swish")),
    "gelu_tanh": ("hidden_activation", ("gelu_pytorch_tanh",)),
    "gelu": ("hidden_activation", ("gelu",)),
}
_PLAIN_ACTIVATIONS: dict[str, PlainActivation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def gated_mlps(
    config: JsonObject,
    *,
    has_bias: bool = False,
    activation: Activation = "silu",
    names: Sequence[str] = GATE_UP_DOWN,
) -> Callable[[int], MlpSpec]:
    """Return dense feed-forward parts of all layers, by layer index.

    `names`: see `gated_mlp`. Raises `ModelError` for another activation in config.json.
    """
    check_activation(config, activation)
    inner = config.integer("intermediate_size", 1, 2**22)

    def ffn(layer: int) -> MlpSpec:
        prefix = f"model.layers.{layer}.mlp"
        return gated_mlp(config, prefix, inner, has_bias, activation, names)

    return ffn


def gated_mlp(
    config: JsonObject,
    prefix: str,
    inner: int,
    has_bias: bool = False,
    activation: Activation = "silu",
    names: Sequence[str] = GATE_UP_DOWN,
) -> MlpSpec:
    """Return an MLP of `inner` width with tensor names that begin with `prefix`.

    `names`: names of gate, up and down, or of a fused tensor for gate and up, and of down.
    """
    method, hidden = linear_method(config), config.integer("hidden_size", 1, 2**20)
    *gate_up, down = (f"{prefix}.{name}" for name in names)
    width = 2 * inner // len(gate_up)
    return MlpSpec(
        activation,
        LinearSpec(tuple(Projection(name, width) for name in gate_up), hidden, has_bias, method),
        LinearSpec((Projection(down, hidden),), inner, has_bias, method),
    )


def check_activation(config: JsonObject, activation: Activation) -> None:
    """Raise `ModelError` if config.json names another activation."""
    field, names = _ACTIVATIONS[activation]
    if config.string(field) not in (None, *names):
        raise config.error(field, f'"{names[0]}" for a model of this type')


def plain_activation(config: JsonObject, default: str = "gelu") -> PlainActivation:
    """Return `hidden_act` of an MLP without a gate; raises `ModelError` for an unknown one."""
    name = config.string("hidden_act") or default
    if name not in _PLAIN_ACTIVATIONS:
        known = " or ".join(f'"{each}"' for each in _PLAIN_ACTIVATIONS)
        raise config.error("hidden_act", f"{known} for a model of this type")
    return _PLAIN_ACTIVATIONS[name]
