"""Jina embeddings v3: XLM-RoBERTa with rotations in place of a table of positions."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.encoder_spec import RotaryForm, rotary_bert
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import PlainMlpSpec, plain_activation
from pagedrun.paged.models.quant.registry import linear_method


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    function, method = plain_activation(config), linear_method(config)
    hidden, inner = (config.integer(f"{n}_size", 1, 2**22) for n in ("hidden", "intermediate"))

    def mlp(own: str) -> PlainMlpSpec:
        up, down = (Projection(f"{own}.mlp.fc1", inner),), (Projection(f"{own}.mlp.fc2", hidden),)
        return PlainMlpSpec(
            function,
            LinearSpec(up, hidden, has_bias=True, method=method),
            LinearSpec(down, inner, has_bias=True, method=method),
        )

    form = RotaryForm(
        theta=20_000.0,
        eps=1e-5,
        num_types=1,
        layers="model.encoder.layers",
        qkv="mixer.Wqkv",
        out="mixer.out_proj",
        attention_norm="norm1",
        ffn_norm="norm2",
        mlp=mlp,
        embedding_norm="model.emb_ln",
    )
    return rotary_bert(config, max_positions, "roberta.", form)


JINA_EMBEDDINGS_V3 = Family(_describe, 8194)
