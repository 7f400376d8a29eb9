"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with positions that begin after the padding's id."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.encoder_spec import BertForm, bert
from pagedrun.paged.models.families.family import Family


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    first = config.integer("pad_token_id", 0, max_positions - 2, 1) + 1
    return bert(config, max_positions, "roberta.", BertForm(first_position=first))


ROBERTA = Family(_describe, 512)
