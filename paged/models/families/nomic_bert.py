"""Nomic BERT: BERT with rotations and gated MLPs, without biases.

config.json has the fields of transformers 5, or the published ones, in the style of GPT-2.
"""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.encoder_spec import RotaryForm, rotary_bert
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import MlpSpec, check_activation
from pagedrun.paged.models.quant.registry import linear_method
from pagedrun.paged.values.json_value import JSONValue

_LAYERS = "model.encoder.layers"
# Published name of each field.
_PUBLISHED = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}
# Published fields with one supported value.
_FIXED: dict[str, JSONValue] = {
    "activation_function": "swiglu",
    "causal": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "use_rms_norm": False,
}
_MAX_POSITIONS = 2048


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    if config.integer("moe_every_n_layers", 0, 2**16, 0):
        raise config.error("moe_every_n_layers", "0: experts are not supported here")
    if config.has("n_embd"):
        config, max_positions = _standard(config)
    check_activation(config, "silu")
    hidden, inner = (config.integer(f"{n}_size", 1, 2**22) for n in ("hidden", "intermediate"))
    method = linear_method(config)

    def mlp(own: str) -> MlpSpec:
        gate_up = tuple(Projection(f"{own}.mlp.{name}", inner) for name in ("fc12", "fc11"))
        down = (Projection(f"{own}.mlp.fc2", hidden),)
        return MlpSpec(
            "silu",
            LinearSpec(gate_up, hidden, has_bias=False, method=method),
            LinearSpec(down, inner, has_bias=False, method=method),
        )

    form = RotaryForm(
        theta=1000.0,
        eps=1e-12,
        num_types=2,
        layers=_LAYERS,
        qkv="attn.Wqkv",
        out="attn.out_proj",
        attention_norm="norm1",
        ffn_norm="norm2",
        mlp=mlp,
        embedding_norm="model.emb_ln",
        has_bias=False,
    )
    return rotary_bert(config, max_positions, "nomic_bert.", form)


def _standard(config: JsonObject) -> tuple[JsonObject, int]:
    """Return published fields under the names of transformers 5, and the number of positions."""
    for name, only in _FIXED.items():
        if config.get(name) not in (None, only):
            shown = str(only).lower() if isinstance(only, bool | None) else str(only)
            raise config.error(name, f"{shown} for a model of this type")
    max_positions = config.integer("n_positions", 1, 2**27, _MAX_POSITIONS)
    if config.has("rotary_scaling_factor"):
        # Longer texts have rotations of their own, by their length.
        trained = config.integer("max_trained_positions", 1, 2**27, _MAX_POSITIONS)
        max_positions = min(max_positions, trained)
    fields = {name: config.get(own) for name, own in _PUBLISHED.items()}
    return JsonObject(config.origin, {**config.fields, **fields}), max_positions


NOMIC_BERT = Family(_describe, _MAX_POSITIONS)
