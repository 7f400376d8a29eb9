"""Recurrent layers: short convolutions and Gated DeltaNets, and their reading from config.json.

A recurrent layer keeps a state of fixed size for each sequence instead of keys and values. A
decoder mixes recurrent layers and attention as in `layer_types` of config.json. Gated DeltaNets are
those of Qwen3-Next and Qwen3.5, short convolutions those of LFM2. The computation is in
`recurrence_layer`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pagedrun.paged.cache.cache_spec import StateArray, StateSpec
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import (
    MTP_TENSORS,
    NO_TENSORS,
    GroupedParts,
    Parameter,
    Part,
    Role,
    StoredTensors,
)
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.layer_spec import MtpForm
from pagedrun.paged.models.modules.attention import AttentionSpec, Heads, QkNormForm, attention
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import check_activation
from pagedrun.paged.models.modules.moe import FfnOfLayer
from pagedrun.paged.models.modules.norm import NormForm, NormSpec
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.models.quant.registry import linear_method


@dataclass(frozen=True, slots=True)
class ConvSpec(Part):
    """Description of a causal convolution over `size` tokens in each of `num_channels` channels."""

    name: str
    num_channels: int
    size: int
    has_bias: bool = False

    @property
    def weight(self) -> Parameter:
        """Weight, [num_channels, 1, size]."""
        return Parameter(f"{self.name}.weight", (self.num_channels, 1, self.size), Role.MATRIX)

    @property
    def bias(self) -> Parameter | None:
        """Bias, [num_channels]."""
        if not self.has_bias:
            return None
        return Parameter(f"{self.name}.bias", (self.num_channels,), Role.BIAS)

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
        """Return the weight and the bias if any."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def state(self, dtype: str) -> StateArray:
        """Return the state of a sequence: the last size - 1 inputs, oldest first."""
        return StateArray("conv", (self.size - 1, self.num_channels), dtype)


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """Description of `out(c * conv(b * x))`; `inputs` gives b, c and x side by side."""

    inputs: LinearSpec
    conv: ConvSpec
    out: LinearSpec

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        return self.inputs, self.conv, self.out

    @property
    def width(self) -> int:
        """Peak numbers of activation of a token: inputs, convolution and result."""
        return self.inputs.out_features + 3 * self.conv.num_channels

    def state_spec(self, dtype: str) -> StateSpec:
        """Return the state of a sequence."""
        return StateSpec((self.conv.state(dtype),))


@dataclass(frozen=True, slots=True)
class DeltaNetSpec:
    """Description of a Gated DeltaNet with `num_heads` value heads that share `num_key_heads`.

    `inputs` gives queries, keys and values, the input of `conv`, then a gate for each value and two
    numbers for each value head. `a_log` and `dt_bias`, [num_heads] float32, are the logarithms of
    the decay rates and the biases of their steps. `norm` has value_dim
    elements; `out` projects the results of the heads.
    """

    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int
    inputs: LinearSpec
    conv: ConvSpec
    a_log: Parameter
    dt_bias: Parameter
    norm: NormSpec
    out: LinearSpec

    @property
    def num_values(self) -> int:
        """Number of values of a token, and of gates."""
        return self.num_heads * self.value_dim

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        return self.inputs, self.conv, self.a_log, self.dt_bias, self.norm, self.out

    @property
    def width(self) -> int:
        """Peak numbers of activation of a token: inputs, convolution and results."""
        return self.inputs.out_features + 2 * self.conv.num_channels + 2 * self.num_values

    def state_spec(self, dtype: str) -> StateSpec:
        """Return the state of a sequence: inputs of `conv`, and a float32 matrix a head."""
        matrices = StateArray("delta", (self.num_heads, self.key_dim, self.value_dim), "float32")
        return StateSpec((self.conv.state(dtype), matrices))


def attention_flags(config: JsonObject, recurrent: str, default: object) -> tuple[bool, ...]:
    """Return True for each layer with attention, False for each layer of the type `recurrent`.

    `default` is that of `layer_types`. Raises `ModelError` for a list of another length, for other
    types, and for a model without attention.
    """
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    given = config.get("layer_types") if config.has("layer_types") else default
    kinds = given if isinstance(given, list) else []
    attends = tuple(each == "full_attention" for each in kinds)
    known = all(each in ("full_attention", recurrent) for each in kinds)
    if not known or len(kinds) != num_layers or not any(attends):
        raise config.error(
            "layer_types",
            f'a list of "full_attention", at least one, or "{recurrent}" for each of '
            f"{num_layers} layers",
        )
    return attends


@dataclass(frozen=True, slots=True)
class DeltaNetSizes:
    """Numbers of key heads and of value heads, their sizes, and the size of the convolution."""

    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int
    conv_size: int

    @classmethod
    def from_json(cls, config: JsonObject) -> "DeltaNetSizes":
        """Read config.json. Raises `ModelError` for inconsistent numbers."""
        num_key_heads = config.integer("linear_num_key_heads", 1, 2**14, 16)
        num_heads = config.integer("linear_num_value_heads", 1, 2**14, 32)
        if num_heads % num_key_heads:
            raise config.error(
                "linear_num_value_heads", f"a multiple of linear_num_key_heads, {num_key_heads}"
            )
        return cls(
            num_key_heads,
            num_heads,
            key_dim=config.integer("linear_key_head_dim", 1, 1024, 128),
            value_dim=config.integer("linear_value_head_dim", 1, 1024, 128),
            conv_size=config.integer("linear_conv_kernel_dim", 2, 64, 4),
        )

    @property
    def num_keys(self) -> int:
        """Number of keys of a token."""
        return self.num_key_heads * self.key_dim

    @property
    def num_values(self) -> int:
        """Number of values of a token."""
        return self.num_heads * self.value_dim


InputsOf = Callable[[DeltaNetSizes, str], tuple[Projection, ...]]


def split_projections(sizes: DeltaNetSizes, prefix: str) -> tuple[Projection, ...]:
    """Return the input projections of Qwen3.5: one for q, k and v, then three for gates."""
    return (
        Projection(f"{prefix}.in_proj_qkv", 2 * sizes.num_keys + sizes.num_values),
        Projection(f"{prefix}.in_proj_z", sizes.num_values),
        Projection(f"{prefix}.in_proj_b", sizes.num_heads),
        Projection(f"{prefix}.in_proj_a", sizes.num_heads),
    )


def grouped_projections(sizes: DeltaNetSizes, prefix: str) -> tuple[Projection, ...]:
    """Return the input projections of Qwen3-Next: two tensors, in groups of a key head."""
    repeats = sizes.num_heads // sizes.num_key_heads
    values = repeats * sizes.value_dim
    qkvz = GroupedParts((sizes.key_dim, sizes.key_dim, values, values), order=(0, 1, 2, 3))
    num_qkvz = 2 * sizes.num_keys + 2 * sizes.num_values
    return (
        Projection(f"{prefix}.in_proj_qkvz", num_qkvz, qkvz),
        Projection(
            f"{prefix}.in_proj_ba",
            2 * sizes.num_heads,
            GroupedParts((repeats, repeats), order=(0, 1)),
        ),
    )


def delta_net_decoder(
    config: JsonObject,
    max_positions: int,
    heads: Heads,
    ffn: FfnOfLayer,
    inputs: InputsOf,
) -> DecoderSpec:
    """Return a decoder with attention by `layer_types`, else by `full_attention_interval`.

    `ffn` gives the feed-forward part of a layer by its index, `inputs` the input projections of a
    DeltaNet. A single MTP module, with attention, is described. Raises `ModelError` for unsupported
    variants.
    """
    check_activation(config, "silu")
    if not config.boolean("attn_output_gate", True):
        raise config.error("attn_output_gate", "true for a model of this type")
    if config.string("output_gate_type") not in (None, "swish", "silu"):
        raise config.error("output_gate_type", '"swish" for a model of this type')
    sizes, norm = DeltaNetSizes.from_json(config), NormForm.from_json(config, offset=1.0)
    interval = config.integer("full_attention_interval", 1, 4096, 4)
    numbers = range(1, config.integer("num_hidden_layers", 1, 4096) + 1)
    default = ["linear_attention" if n % interval else "full_attention" for n in numbers]
    attends = attention_flags(config, "linear_attention", default)
    bias = config.boolean("attention_bias", False)
    rope = RopeConfig.from_json(config, max_positions, rotated=0.25)
    qk_norm = QkNormForm()

    def mixer(layer: int) -> AttentionSpec | DeltaNetSpec:
        if layer < len(attends) and not attends[layer]:
            return _delta_net(config, layer, sizes, norm.eps, inputs)
        return attention(
            config, heads, norm, rope, None, layer, bias=bias, qk_norm=qk_norm, has_gate=True
        )

    has_mtp = config.integer("mtp_num_hidden_layers", 0, 64, 1) == 1
    mtp = _MTP if has_mtp else None
    return decoder(config, max_positions, norm, mixer, ffn, tensors=MTP_TENSORS, mtp=mtp)


_MTP = MtpForm(
    "mtp",
    ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"),
    layer="layers.0.",
    repeats_normed=True,
)


def _delta_net(
    config: JsonObject, layer: int, sizes: DeltaNetSizes, eps: float, inputs: InputsOf
) -> DeltaNetSpec:
    method, prefix = linear_method(config), f"model.layers.{layer}.linear_attn"
    hidden = config.integer("hidden_size", 1, 2**20)
    out = (Projection(f"{prefix}.out_proj", hidden),)
    return DeltaNetSpec(
        sizes.num_key_heads,
        sizes.num_heads,
        sizes.key_dim,
        sizes.value_dim,
        inputs=LinearSpec(inputs(sizes, prefix), hidden, False, method, keep_precision=True),
        conv=ConvSpec(f"{prefix}.conv1d", 2 * sizes.num_keys + sizes.num_values, sizes.conv_size),
        a_log=Parameter(f"{prefix}.A_log", (sizes.num_heads,), Role.BIAS, in_float32=True),
        dt_bias=Parameter(f"{prefix}.dt_bias", (sizes.num_heads,), Role.BIAS, in_float32=True),
        norm=NormForm(eps).named(f"{prefix}.norm", sizes.value_dim),
        out=LinearSpec(out, sizes.num_values, has_bias=False, method=method),
    )
