"""DistilBERT: BERT without token types, under names of its own."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.encoder_spec import BertForm, BertNames, bert
from pagedrun.paged.models.families.family import Family

_NAMES = BertNames(
    layers="model.transformer.layer",
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    attention_out="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    ffn_norm="output_layer_norm",
)
_FIELDS = {
    "hidden_size": ("dim", 768),
    "intermediate_size": ("hidden_dim", 3072),
    "num_hidden_layers": ("n_layers", 6),
    "num_attention_heads": ("n_heads", 12),
}


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    given = {name: config.get(own) or default for name, (own, default) in _FIELDS.items()}
    fields = {**config.fields, **given, "type_vocab_size": 0, "layer_norm_eps": 1e-12}
    renamed = JsonObject(config.origin, {**fields, "hidden_act": config.get("activation")})
    return bert(renamed, max_positions, "distilbert.", BertForm(names=_NAMES))


DISTILBERT = Family(_describe, 512)
