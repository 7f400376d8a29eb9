"""ELECTRA: BERT whose embedding may be narrower than its layers."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.encoder_spec import BertForm, bert
from pagedrun.paged.models.families.family import Family


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    hidden = config.integer("hidden_size", 1, 2**20, 256)
    is_narrow = config.integer("embedding_size", 1, 2**20, 128) != hidden
    form = BertForm(projection="model.embeddings_project" if is_narrow else None)
    return bert(config.with_defaults({"hidden_size": hidden}), max_positions, "electra.", form)


ELECTRA = Family(_describe, 512)
