"""Family: the models of one `model_type`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderLayerSpec, DecoderSpec, LayerSpec

if TYPE_CHECKING:
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource
    from pagedrun.paged.models.model import Model

LayerT = TypeVar("LayerT", bound=LayerSpec)


@dataclass(frozen=True, slots=True)
class Family(Generic[LayerT]):
    """What config.json means for models of one type.

    `describe(config, max_position_embeddings)` returns the network; it raises `ModelError` for
    what would change the arithmetic if it were silently ignored. `load(network, source,
    num_positions)` returns it with its weights, ready for positions below `num_positions`; torch
    is imported there. The rest is what transformers 5 assumes where config.json is silent.
    """

    describe: Callable[[JsonObject, int], DecoderSpec[LayerT]]
    load: "Callable[[DecoderSpec[LayerT], WeightSource, int], Model]"
    max_position_embeddings: int
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None


def load_decoder(
    network: DecoderSpec[DecoderLayerSpec], source: "WeightSource", num_positions: int
) -> "Model":
    """Return the network with its weights, ready for positions below `num_positions`."""
    # Imported here: a plan reads families too, and torch takes seconds.
    from pagedrun.paged.models.decoder import Decoder, DecoderLayer

    return Decoder(network, source, num_positions, DecoderLayer)
