"""ALBERT: layers that share their weights, behind an embedding that is projected."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.encoder_spec import BertForm, BertNames, bert
from pagedrun.paged.models.families.family import Family

_NAMES = BertNames(
    qkv=("attention.query", "attention.key", "attention.value"),
    attention_out="attention.dense",
    attention_norm="attention.LayerNorm",
    up="ffn",
    down="ffn_output",
    ffn_norm="full_layer_layer_norm",
)


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    num_layers = config.integer("num_hidden_layers", 1, 4096, 12)
    num_groups = config.integer("num_hidden_groups", 1, num_layers, 1)
    of_group = config.integer("inner_group_num", 1, 64, 1)
    # The quotient is rounded as by Transformers.
    groups = [int(index / (num_layers / num_groups)) for index in range(num_layers)]
    names = [
        f"model.encoder.albert_layer_groups.{group}.albert_layers.{layer}"
        for group in groups
        for layer in range(of_group)
    ]
    form = BertForm(
        activation="gelu_new",
        names=_NAMES,
        layer_names=names,
        projection="model.encoder.embedding_hidden_mapping_in",
    )
    with_layers = config.with_defaults({"num_hidden_layers": num_layers})
    return bert(with_layers, max_positions, "albert.", form)


ALBERT = Family(_describe, 512)
