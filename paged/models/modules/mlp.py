"""Gated MLPs: description and its reading from config.json."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import Part, StoredTensors
from pagedrun.paged.models.modules.linear import LinearMethod, LinearSpec, Projection
from pagedrun.paged.models.quant.registry import linear_method

Activation = Literal["silu", "gelu_tanh"]


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


class FfnSpec(Protocol):
    """Description of a feed-forward part: an MLP or an MoE layer."""

    @property
    def intermediate_size(self) -> int:
        """Inner width of all networks of a token."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        ...

    @property
    def width(self) -> int:
        """Peak numbers of activation of a token."""
        ...

    def stored_as(self, stored: StoredTensors) -> "FfnSpec":
        """Return the part in the layout of a checkpoint that has the tensors `stored`."""
        ...


FfnOfLayer = Callable[[int], FfnSpec]
# Field of config.json for an activation, and its names there.
_ACTIVATIONS: dict[Activation, tuple[str, tuple[str, ...]]] = {
    "silu": ("hidden_act", ("silu", "swish")),
    "gelu_tanh": ("hidden_activation", ("gelu_pytorch_tanh",)),
}


def gated_mlps(
    config: JsonObject,
    *,
    has_bias: bool = False,
    is_fused: bool = False,
    activation: Activation = "silu",
) -> FfnOfLayer:
    """Return dense feed-forward parts of all layers, by layer index.

    `is_fused`: one tensor `gate_up_proj` instead of two. Raises `ModelError` for another
    activation in config.json.
    """
    check_activation(config, activation)
    method = linear_method(config)
    hidden = config.integer("hidden_size", 1, 2**20)
    inner = config.integer("intermediate_size", 1, 2**22)

    def ffn(layer: int) -> MlpSpec:
        prefix = f"model.layers.{layer}.mlp"
        if not is_fused:
            return gated_mlp(prefix, hidden, inner, method, has_bias, activation)
        return MlpSpec(
            activation,
            LinearSpec(
                (Projection(f"{prefix}.gate_up_proj", 2 * inner),), hidden, has_bias, method
            ),
            LinearSpec((Projection(f"{prefix}.down_proj", hidden),), inner, has_bias, method),
        )

    return ffn


def gated_mlp(
    prefix: str,
    hidden: int,
    inner: int,
    method: LinearMethod,
    has_bias: bool = False,
    activation: Activation = "silu",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> MlpSpec:
    """Return an MLP with tensor names that begin with `prefix`.

    `names`: names of gate, up and down.
    """
    gate, up = (Projection(f"{prefix}.{name}", inner) for name in names[:2])
    down = Projection(f"{prefix}.{names[2]}", hidden)
    return MlpSpec(
        activation,
        gate_up=LinearSpec((gate, up), hidden, has_bias, method),
        down=LinearSpec((down,), inner, has_bias, method),
    )


def check_activation(config: JsonObject, activation: Activation) -> None:
    """Raise `ModelError` if config.json names another activation."""
    field, names = _ACTIVATIONS[activation]
    if config.string(field) not in (None, *names):
        raise config.error(field, f'"{names[0]}" for a model of this type')
