"""Configs of models: config.json or a GGUF header becomes the description of a network.

Only the fields named in families and modules are read. `auto_map`, `_attn_implementation_internal`
and other fields that could name code are not, so a model folder cannot make pagedrun run anything.
`describe_model` also covers the models that Transformers computes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pagedrun.paged.files.gguf import is_gguf
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import MULTIMODAL_TENSORS
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.registry import (
    ENCODERS,
    FAMILIES,
    NESTED,
    NESTED_TOO,
    UNSUPPORTED,
    WITHOUT_VECTORS,
)
from pagedrun.paged.models.modules.attention import AttentionSpec
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.rotary import MAX_POSITIONS
from pagedrun.paged.models.quant.int8 import MAX_IN_FEATURES, Int8, Int8Activations
from pagedrun.paged.models.quant.linear_methods import Dense
from pagedrun.paged.models.quant.registry import with_quantization
from pagedrun.paged.models.runnable_config import (
    RunnableConfig,
    eos_token_ids,
    read_configs,
    stored_dtype,
)
from pagedrun.paged.models.transformers_backend.config import TransformersConfig
from pagedrun.paged.models.transformers_backend.config_fields import generates_text, is_encoder
from pagedrun.paged.values.engine_config import OFF, EngineConfig
from pagedrun.paged.values.errors import ModelError, option

if TYPE_CHECKING:
    from pagedrun.paged.models.checkpoint.header import Header


def describe_model(folder: str | Path, model_impl: str) -> RunnableConfig:
    """Read a folder's config.json for the code that `model_impl` names; see `EngineConfig`.

    Raises `ModelError` for a model that this code does not run.
    """
    if model_impl == "transformers":
        return TransformersConfig.from_folder(folder)
    return ModelConfig.from_folder(folder)


@dataclass(frozen=True, slots=True)
class ModelConfig(RunnableConfig):
    """A model of a family that pagedrun knows, and the token that it begins with."""

    network: DecoderSpec
    bos_token_id: int | None

    @classmethod
    def from_folder(cls, folder: str | Path) -> "ModelConfig":
        """Read `folder`/config.json and generation_config.json, or the metadata of a GGUF file.

        Raises `ModelError` if the folder or config.json is missing or unreadable, and for what
        `from_json` refuses.
        """
        path = Path(folder)
        if is_gguf(path):
            return cls._from_gguf(path)
        fields, generation = read_configs(path)
        fields = with_quantization(path, fields)
        config = cls.from_json(fields, generation)
        return cls.from_json(_untied(fields), generation) if _is_untied(path, config) else config

    @classmethod
    def _from_gguf(cls, path: Path) -> "ModelConfig":
        # Imported here: they import numpy, which the command line's help does not need.
        from pagedrun.paged.files.gguf import GgufFile
        from pagedrun.paged.models.checkpoint.gguf_config import gguf_config, with_gguf_row_order

        file = GgufFile.open(path)
        config = cls.from_json(gguf_config(file))
        return replace(config, network=with_gguf_row_order(config.network, file))

    @classmethod
    def from_json(
        cls,
        config: JsonObject,
        generation: JsonObject | None = None,
        families: Mapping[str, Family] = FAMILIES,
    ) -> "ModelConfig":
        """Read the contents of a config.json, and of a generation_config.json if there is one.

        `families` may include encoders. Defaults are those of transformers 5. Raises `ModelError`
        for an unsupported kind of model, and for fields that are missing, of the wrong type, or
        out of range.
        """
        nested = MultimodalConfig.of(config)
        text = config if nested is None else nested.text
        model_type = _model_type(text, families)
        family = families[model_type]
        max_positions = text.integer(
            "max_position_embeddings", 1, MAX_POSITIONS, family.max_position_embeddings
        )
        network = family.describe(text, max_positions)
        if nested is not None:
            network = nested.described(network)
        vocab_size = network.vocab_size
        return cls(
            model_type=model_type,
            network=network,
            max_position_embeddings=network.max_position_embeddings,
            eos_token_ids=eos_token_ids(
                generation, (config, text), family.eos_token_id, vocab_size
            ),
            bos_token_id=_bos_token_id(text, family, vocab_size),
            dtype=stored_dtype(text),
        )

    def held_as(self, quantization: str, folder: Path) -> "ModelConfig":
        """Return the model with its weights quantized as `EngineConfig.quantization` says.

        Raises `ModelError` naming `folder` if they cannot be.
        """
        if quantization != "int8":
            return self
        return replace(self, network=int8_at_load(self.network, folder))

    def with_mtp(self, config: EngineConfig, header: "Header", *, is_async: bool) -> "ModelConfig":
        """Return the model with its MTP module if a run with these settings drafts by it.

        header: of the checkpoint. is_async: steps are scheduled before the tokens of the last one
        are known; nothing is predicted then.
        """
        if config.speculate == OFF or is_async:
            return self
        from pagedrun.paged.models.checkpoint.header import StoredNetwork  # it imports numpy

        stored = StoredNetwork.of(self.network, header).stored
        return replace(self, network=self.network.with_mtp(stored))

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.network.embedding.hidden_size

    @property
    def num_layers(self) -> int:
        """Layers of the network."""
        return self.network.num_layers

    @property
    def num_heads(self) -> int:
        """Query heads of the first layer with attention."""
        return self._attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values of the first layer with attention."""
        return self._attention.num_kv_heads

    @property
    def head_dim(self) -> int:
        """Size of a head of the first layer with attention."""
        return self._attention.head_dim

    @property
    def _attention(self) -> AttentionSpec:
        return next(iter(self.network.attentions.values()))

    @property
    def intermediate_size(self) -> int:
        """Inner width of the widest feed-forward part."""
        return max(layer.intermediate_size for layer in self.network.layers)


def _is_untied(folder: Path, config: ModelConfig) -> bool:
    """Return True if the head is tied by config.json, but not by the checkpoint of a folder."""
    if not config.network.ties_head:
        return False
    from pagedrun.paged.models.checkpoint.header import has_own_head  # it imports numpy

    return has_own_head(folder, config.network)


# The second is the name in the first checkpoints of LFM2.
_TIES = ("tie_word_embeddings", "tie_embedding")


def _untied(config: JsonObject) -> JsonObject:
    return JsonObject(config.origin, {**config.fields, **dict.fromkeys(_TIES, False)})


def _model_type(config: JsonObject, families: Mapping[str, Family]) -> str:
    """Return the type of a model that pagedrun can run."""
    model_type = config.string("model_type")
    if model_type is not None and model_type in families:
        return model_type
    has_encoders = ENCODERS.keys() <= families.keys()
    decoders = [*FAMILIES, *NESTED]
    wanted = f"one of {', '.join(decoders)}, the types that pagedrun supports"
    if has_encoders:
        decoders = [each for each in decoders if each not in WITHOUT_VECTORS]
        wanted = (
            f"one of {', '.join(ENCODERS)}, encoders, or one of {', '.join(decoders)}, decoders: "
            "the types that have vectors and scores in pagedrun"
        )
    elif model_type in ENCODERS:
        raise ModelError(
            f"{config.origin}: model_type is {model_type!r}, an encoder, which generates no text; "
            "use pagedrun embed, rerank or classify"
        )
    elif is_encoder(model_type) and not generates_text(model_type):
        raise ModelError(
            f"{config.origin}: model_type is {model_type!r}, an encoder, which generates no text; "
            "the encoders that pagedrun embed, rerank and classify have are "
            f"{', '.join(ENCODERS)}"
        )
    if model_type in UNSUPPORTED:
        missing, nearest = UNSUPPORTED[model_type]
        raise ModelError(
            f"{config.origin}: model_type is {model_type!r}, which pagedrun does not support "
            f"yet, for lack of {missing}; the most similar supported type is {nearest} "
            f"(all: {', '.join(decoders)}){_way_out(model_type, has_encoders)}"
        )
    raise config.error("model_type", wanted + _way_out(model_type, has_encoders))


def _way_out(model_type: str | None, has_encoders: bool) -> str:
    """Return advice for a type of which Transformers can generate text, where that is asked for."""
    if has_encoders or not generates_text(model_type):
        return ""
    return f"; Transformers supports it: try {option('model_impl')} transformers"


def _bos_token_id(config: JsonObject, family: Family, vocab_size: int) -> int | None:
    if "bos_token_id" not in config:
        return family.bos_token_id
    if not config.has("bos_token_id"):
        return None
    return config.integer("bos_token_id", 0, vocab_size - 1)


# Fields of the outer config that apply to the decoder, with precedence over its own.
_OUTER = (
    *("tie_word_embeddings", "dtype", "torch_dtype"),
    *("quantization_config", "compression_config"),
)


@dataclass(frozen=True, slots=True)
class MultimodalConfig:
    """`outer` is config.json, `text` the decoder's part of it, with the fields of both."""

    outer: JsonObject
    text: JsonObject

    @classmethod
    def of(cls, config: JsonObject) -> "MultimodalConfig | None":
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

    def described(self, network: DecoderSpec) -> DecoderSpec:
        """Return the network under the names of such checkpoints."""
        return replace(network, tensors=MULTIMODAL_TENSORS)


MAX_ROTARY_BYTES = 2**30  # two million positions at 128 dimensions a head


def num_rotary_positions(config: ModelConfig, asked: int | None, folder: Path) -> int:
    """Return the number of positions with precomputed rotations.

    That is the model's context if its table is at most `MAX_ROTARY_BYTES`, else `asked`, the limit
    of a row; None: the context. Raises `ModelError` naming `folder` if that is too large as well.
    """
    most = config.max_position_embeddings
    max_model_len = min(asked or most, most)
    widest = max(each.head_dim for each in config.network.attentions.values())
    num_fit = MAX_ROTARY_BYTES // (4 * widest)
    if most > num_fit and max_model_len > num_fit:
        raise ModelError(
            f"{folder}/config.json: max_position_embeddings is {most}, more than "
            f"the {num_fit} positions with precomputed rotations; pass "
            f"{option('max_model_len')} with at most that"
        )
    return most if most <= num_fit else max_model_len


ValueT = TypeVar("ValueT")


def int8_at_load(network: DecoderSpec, origin: object) -> DecoderSpec:
    """Return the network with int8 linear layers, except experts and layers that keep precision.

    A tied head gets codes of its own, quantized from the unchanged embedding table. A network with
    an int8 checkpoint is returned unchanged. Raises `ModelError` naming `origin`, the file of the
    network, for any other quantization.
    """
    parts = [part for layer in network.layers for part in layer.parts]
    methods = [part.method for part in parts if isinstance(part, LinearSpec)]
    if any(isinstance(method, Int8Activations) for method in methods):
        return network
    if not all(isinstance(method, Dense | Int8) for method in methods):
        raise ModelError(
            f"{origin}: its weights are already quantized, so {option('quantization')} int8 "
            "does not apply; leave it out, or use the unquantized model"
        )
    network = _changed(network, _in_int8)
    if network.head is not None or not network.has_head:
        return network
    table = network.embedding
    tied = (Projection(table.name, table.vocab_size),)
    head = LinearSpec(tied, table.hidden_size, has_bias=False, method=Dense())
    return replace(network, head=_in_int8(head))


def _in_int8(linear: LinearSpec) -> LinearSpec:
    if linear.keep_precision or linear.in_features > MAX_IN_FEATURES:
        return linear
    return replace(linear, method=Int8())


def _changed(value: ValueT, change: Callable[[LinearSpec], LinearSpec]) -> ValueT:
    """Return a description with `change` applied to all its linear layers, nested ones too."""
    found: object = value
    if isinstance(value, LinearSpec):
        found = change(value)
    elif isinstance(value, tuple):
        found = tuple(_changed(each, change) for each in value)
    elif is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        found = replace(value, **{name: _changed(getattr(value, name), change) for name in names})
    assert isinstance(found, type(value))
    return found
