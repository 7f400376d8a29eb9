"""Family: reading of config.json for the models of one `model_type`."""

from collections.abc import Callable
from dataclasses import dataclass

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Family:
    """Reader of config.json and defaults of transformers 5 for one `model_type`.

    `describe(config, max_position_embeddings)` returns the network. It raises `ModelError` for
    fields that would change the arithmetic if they were ignored. The other fields are defaults
    for a config.json without them.
    """

    describe: Callable[[JsonObject, int], DecoderSpec]
    max_position_embeddings: int
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
