"""NestedConfig: a config.json whose decoder lies beside parts for images."""

from dataclasses import dataclass, replace

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.families.registry import FAMILIES, NESTED, NESTED_TOO
from pagedrun.paged.models.network.checkpoint.tensor_names import NESTED_TENSORS
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import LayerSpec

# What holds for the decoder too where the outer config says it, and wins where both do.
_OUTER = (
    *("tie_word_embeddings", "dtype", "torch_dtype"),
    *("quantization_config", "compression_config"),
)


@dataclass(frozen=True, slots=True)
class NestedConfig:
    """`outer` is config.json, `text` the decoder's part of it, with the fields of both."""

    outer: JsonObject
    text: JsonObject

    @classmethod
    def of(cls, config: JsonObject) -> "NestedConfig | None":
        """Return the decoder of a folder that holds more, None for one that is a decoder.

        Raises `ModelError` for a decoder that such folders do not hold.
        """
        model_type = config.string("model_type")
        if model_type not in NESTED:
            return None
        text = config.section("text_config").with_defaults({"model_type": NESTED[model_type]})
        decoders = (NESTED[model_type], *NESTED_TOO.get(model_type, ()))
        if text.string("model_type") in {*FAMILIES, *NESTED} - {*decoders}:
            raise text.error("model_type", f"{' or '.join(decoders)} in a folder of {model_type}")
        given = {name: config.fields[name] for name in _OUTER if config.has(name)}
        return cls(config, JsonObject(text.origin, {**text.fields, **given}))

    def described(self, network: DecoderSpec[LayerSpec]) -> DecoderSpec[LayerSpec]:
        """Return the network under the names that such checkpoints use.

        A head beside a config that has none would not be what the config says, so it is not let
        pass there.
        """
        ignored = tuple(name for name in network.ignored if not name.startswith("lm_head"))
        return replace(network, tensors=NESTED_TENSORS, ignored=ignored)
