"""Load a decoder of layers that normalise their inputs."""

from typing import TYPE_CHECKING

from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import DecoderLayerSpec

if TYPE_CHECKING:  # they import torch
    from pagedrun.paged.models.model import Model
    from pagedrun.paged.models.weight_source import WeightSource


def load_decoder(
    network: DecoderSpec[DecoderLayerSpec], source: "WeightSource", num_positions: int
) -> "Model":
    """Return the network with its weights, ready for positions below `num_positions`."""
    # Imported here: a plan reads families too, and torch takes seconds.
    from pagedrun.paged.models.decoder import Decoder
    from pagedrun.paged.models.layers.decoder_layer import DecoderLayer

    return Decoder(network, source, num_positions, DecoderLayer)
