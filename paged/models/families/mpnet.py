"""MPNet: BERT with a number for each distance in scores, and positions as in RoBERTa."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import Parameter, Role
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.encoder_spec import BertForm, BertNames, bert
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.relative import DistanceBias

_NAMES = BertNames(
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    attention_out="attention.attn.o",
    attention_norm="attention.LayerNorm",
)
_NUM_BUCKETS = 32  # whatever the table has
_FIRST_POSITION = 2  # whatever the padding's id


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    if max_positions <= _FIRST_POSITION:
        raise config.error("max_position_embeddings", f"above {_FIRST_POSITION}")
    num_heads = config.integer("num_attention_heads", 1, 2**14)
    rows = config.integer("relative_attention_num_buckets", _NUM_BUCKETS, 2**16, _NUM_BUCKETS)
    name = "model.encoder.relative_attention_bias.weight"
    bias = DistanceBias(Parameter(name, (rows, num_heads), Role.MATRIX), _NUM_BUCKETS)
    form = BertForm(
        first_position=_FIRST_POSITION,
        num_types=0,
        names=_NAMES,
        relative=lambda prefix: bias,
    )
    without_types = JsonObject(config.origin, {**config.fields, "type_vocab_size": 0})
    return bert(without_types, max_positions, "mpnet.", form)


MPNET = Family(_describe, 512)
