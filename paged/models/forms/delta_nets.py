"""Gated DeltaNets, read from config.json, in decoders whose other layers attend behind gates."""

from collections.abc import Callable
from dataclasses import dataclass

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.forms.attention_form import AttentionForm, QkNormForm
from pagedrun.paged.models.forms.decoder_form import DecoderForm
from pagedrun.paged.models.forms.ffns import FfnOfLayer, check_activation
from pagedrun.paged.models.forms.heads import Heads
from pagedrun.paged.models.forms.hybrid_form import HybridForm, layers_that_attend
from pagedrun.paged.models.forms.norm_form import NormForm
from pagedrun.paged.models.linears.registry import linear_method
from pagedrun.paged.models.network.checkpoint.interleaved_parts import InterleavedParts
from pagedrun.paged.models.network.checkpoint.tensor_names import GUESSING_TENSORS
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import DecoderLayerSpec
from pagedrun.paged.models.network.linear_spec import LinearSpec, Projection
from pagedrun.paged.models.network.recurrence.conv_spec import ConvSpec
from pagedrun.paged.models.network.recurrence.decay_spec import DecaySpec
from pagedrun.paged.models.network.recurrence.delta_net_spec import DeltaNetSpec
from pagedrun.paged.models.rope_config import RopeConfig


@dataclass(frozen=True, slots=True)
class DeltaNetSizes:
    """Heads of keys and queries, and of values; the heads' sizes; tokens that the convolution sees.

    Raises `ModelError` for numbers that do not go together.
    """

    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int
    conv_size: int

    @classmethod
    def from_json(cls, config: JsonObject) -> "DeltaNetSizes":
        """Read them from config.json."""
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
        """Numbers of a token's keys."""
        return self.num_key_heads * self.key_dim

    @property
    def num_values(self) -> int:
        """Numbers of a token's values."""
        return self.num_heads * self.value_dim


InputsOf = Callable[[DeltaNetSizes, str], tuple[Projection, ...]]


def separate_inputs(sizes: DeltaNetSizes, prefix: str) -> tuple[Projection, ...]:
    """Return a tensor for queries, keys and values, one for gates, and one for each number."""
    return (
        Projection(f"{prefix}.in_proj_qkv", 2 * sizes.num_keys + sizes.num_values),
        Projection(f"{prefix}.in_proj_z", sizes.num_values),
        Projection(f"{prefix}.in_proj_b", sizes.num_heads),
        Projection(f"{prefix}.in_proj_a", sizes.num_heads),
    )


def grouped_inputs(sizes: DeltaNetSizes, prefix: str) -> tuple[Projection, ...]:
    """Return the same in two tensors, in each of which a key head's share lies together."""
    repeats = sizes.num_heads // sizes.num_key_heads
    values = repeats * sizes.value_dim
    qkvz = InterleavedParts((sizes.key_dim, sizes.key_dim, values, values), order=(0, 1, 2, 3))
    num_qkvz = 2 * sizes.num_keys + 2 * sizes.num_values
    return (
        Projection(f"{prefix}.in_proj_qkvz", num_qkvz, qkvz),
        Projection(
            f"{prefix}.in_proj_ba",
            2 * sizes.num_heads,
            InterleavedParts((repeats, repeats), order=(0, 1)),
        ),
    )


def delta_net_decoder(
    config: JsonObject,
    max_positions: int,
    heads: Heads,
    ffn: FfnOfLayer,
    inputs: InputsOf,
) -> DecoderSpec[DecoderLayerSpec]:
    """Return a decoder of which every `full_attention_interval`th layer attends, or as listed.

    `ffn` gives the feed-forward part of a layer by its index, `inputs` what the tensors of a
    DeltaNet's inputs are. Raises `ModelError` for what such a decoder does not have.
    """
    check_activation(config, "silu")
    if not config.boolean("attn_output_gate", True):
        raise config.error("attn_output_gate", "true for a model of this type")
    if config.string("output_gate_type") not in (None, "swish", "silu"):
        raise config.error("output_gate_type", '"swish" for a model of this type')
    sizes, norm = DeltaNetSizes.from_json(config), NormForm.from_json(config, offset=1.0)
    interval = config.integer("full_attention_interval", 1, 4096, 4)
    places = range(1, config.integer("num_hidden_layers", 1, 4096) + 1)
    default = ["linear_attention" if place % interval else "full_attention" for place in places]
    attends = layers_that_attend(config, "linear_attention", default)
    bias = config.boolean("attention_bias", False)
    attention = AttentionForm(
        heads,
        windows=[None] * len(attends),
        ropes=[RopeConfig.from_json(config, max_positions, rotated=0.25)] * len(attends),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=QkNormForm(),
        has_gate=True,
    )
    mixers = HybridForm(
        attends, attention, lambda layer: _delta_net(config, layer, sizes, norm.eps, inputs)
    )
    form = DecoderForm(norm, tensors=GUESSING_TENSORS)
    return form.decoder(config, max_positions, mixers, ffn)


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
        inputs=LinearSpec(inputs(sizes, prefix), hidden, False, method, is_delicate=True),
        conv=ConvSpec(f"{prefix}.conv1d", 2 * sizes.num_keys + sizes.num_values, sizes.conv_size),
        decay=DecaySpec(prefix, sizes.num_heads),
        norm=NormForm(eps).named(f"{prefix}.norm", sizes.value_dim),
        out=LinearSpec(out, sizes.num_values, has_bias=False, method=method),
    )
