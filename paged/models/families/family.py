"""Family: models of one `model_type`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import LayerSpec

if TYPE_CHECKING:  # they import torch
    from pagedrun.paged.models.model import Model
    from pagedrun.paged.models.weight_source import WeightSource

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
