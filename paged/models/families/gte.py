"""GTE of 2024 in the class of transformers 5: BERT with rotations and gated MLPs."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import GroupedParts
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.encoder_spec import RotaryForm, rotary_bert
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import MlpSpec
from pagedrun.paged.models.quant.registry import linear_method


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    if (config.string("hidden_act") or "gelu") != "gelu":
        raise config.error("hidden_act", '"gelu" for a model of this type')
    method = linear_method(config)
    hidden, inner = (config.integer(f"{n}_size", 1, 2**22) for n in ("hidden", "intermediate"))

    def mlp(own: str) -> MlpSpec:
        # Stored as up, then gate.
        order = GroupedParts((inner, inner), order=(1, 0))
        gate_up = (Projection(f"{own}.mlp.up_gate_proj", 2 * inner, order),)
        down = (Projection(f"{own}.mlp.down_proj", hidden),)
        return MlpSpec(
            "gelu",
            LinearSpec(gate_up, hidden, has_bias=False, method=method),
            LinearSpec(down, inner, has_bias=True, method=method),
        )

    form = RotaryForm(
        theta=160_000.0,
        eps=1e-12,
        num_types=1,
        layers="model.encoder.layer",
        qkv="attention.qkv_proj",
        out="attention.o_proj",
        attention_norm="attn_ln",
        ffn_norm="mlp_ln",
        mlp=mlp,
        embedding_norm="model.embeddings.LayerNorm",
    )
    return rotary_bert(config, max_positions, "gte.", form)


GTE = Family(_describe, 8192)
