"""BERT, and MiniLM, E5, BGE and GTE in its form."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.encoder_spec import BertForm, bert
from pagedrun.paged.models.families.family import Family


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    return bert(config, max_positions, "bert.", BertForm())


BERT = Family(_describe, 512)
