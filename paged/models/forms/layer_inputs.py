"""Inputs of each layer, read from config.json, under the names of Gemma's tensors."""

from dataclasses import replace

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.forms.norm_form import NormForm
from pagedrun.paged.models.linears.registry import linear_method
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.embedding_spec import EmbeddingSpec
from pagedrun.paged.models.network.layer_inputs_spec import InputGateSpec, LayerInputsSpec
from pagedrun.paged.models.network.layer_spec import DecoderLayerSpec
from pagedrun.paged.models.network.linear_spec import LinearSpec, Projection
from pagedrun.paged.models.network.mlp_spec import Activation


def with_layer_inputs(
    network: DecoderSpec[DecoderLayerSpec],
    config: JsonObject,
    norm: NormForm,
    activation: Activation,
) -> DecoderSpec[DecoderLayerSpec]:
    """Return the network with an input for each layer, if config.json gives them a size above 0.

    Raises `ModelError` for a table of fewer tokens than the model has.
    """
    size = config.integer("hidden_size_per_layer_input", 0, 2**16)
    if not size:
        return network
    hidden, method = network.embedding.hidden_size, linear_method(config)
    num_tokens = config.integer("vocab_size_per_layer_input", network.embedding.vocab_size, 2**24)
    width = len(network.layers) * size

    def linear(name: str, in_features: int, out_features: int) -> LinearSpec:
        return LinearSpec((Projection(name, out_features),), in_features, False, method)

    def gated(index: int, layer: DecoderLayerSpec) -> DecoderLayerSpec:
        name = f"model.layers.{index}"
        gate = InputGateSpec(
            activation,
            gate=linear(f"{name}.per_layer_input_gate", hidden, size),
            out=linear(f"{name}.per_layer_projection", size, hidden),
            out_norm=norm.named(f"{name}.post_per_layer_input_norm", hidden),
        )
        return replace(layer, input_gate=gate)

    inputs = LayerInputsSpec(
        len(network.layers),
        size,
        EmbeddingSpec("model.embed_tokens_per_layer", num_tokens, width, size**0.5),
        projection=linear("model.per_layer_model_projection", hidden, width),
        projection_scale=hidden**-0.5,
        norm=norm.named("model.per_layer_projection_norm", size),
    )
    layers = tuple(gated(index, layer) for index, layer in enumerate(network.layers))
    return replace(network, layers=layers, layer_inputs=inputs)
