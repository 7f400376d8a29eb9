"""ModelConfig: the shape of a decoder, read from the config.json of a model folder.

Only the fields named here are looked at. `auto_map`, `_attn_implementation_internal` and anything
else that could name code is never read, so a model folder cannot make pagedrun run anything.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pagedrun.paged.files.json_object import JsonObject, is_integer, require_folder
from pagedrun.paged.models.rope_config import MAX_POSITIONS, RopeConfig
from pagedrun.paged.values.errors import ModelError

DtypeName = Literal["float32", "bfloat16", "float16"]
_DTYPES: dict[str, DtypeName] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
}


@dataclass(frozen=True, slots=True)
class _Family:
    """What a model type fixes, and what transformers 5 assumes where config.json is silent.

    `num_kv_heads` None: as many as query heads. `head_dim` None: hidden_size / num_heads.
    """

    max_position_embeddings: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    qk_norm: bool = False


_FAMILIES = {
    "llama": _Family(2048, bos_token_id=1, eos_token_id=2),
    "mistral": _Family(131_072, num_kv_heads=8, bos_token_id=1, eos_token_id=2),
    "qwen2": _Family(32_768, num_kv_heads=32),
    "qwen3": _Family(32_768, num_kv_heads=32, head_dim=128, qk_norm=True),
}
# The window of a config.json that does not name one, and the first layer that has it (Qwen).
_DEFAULT_WINDOW = 4096
_DEFAULT_MAX_WINDOW_LAYERS = 28


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a llama, mistral, qwen2 or qwen3 decoder.

    `windows[layer]` is None for full attention; a window w lets the query at position p see the
    keys at positions p - w < k <= p, itself included. `qkv_bias`, `out_bias` and `mlp_bias` say
    whether those projections have biases, `qk_norm` whether each head's query and key pass an
    RMSNorm before rotation. `eos_token_ids` lists those of generation_config.json first.
    `dtype` is the one the weights were meant for ("float32" where config.json does not say).
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    dtype: DtypeName

    @classmethod
    def from_folder(cls, folder: str | Path) -> "ModelConfig":
        """Read `folder`/config.json, and the end-of-sequence ids of generation_config.json.

        Raises `ModelError` if the folder or config.json is missing or unreadable, and for what
        `from_json` refuses.
        """
        path = require_folder(folder)
        config = JsonObject.read(path / "config.json")
        generation_path = path / "generation_config.json"
        generation = JsonObject.read(generation_path) if generation_path.exists() else None
        return cls.from_json(config, generation)

    @classmethod
    def from_json(cls, config: JsonObject, generation: JsonObject | None = None) -> "ModelConfig":
        """Read the contents of a config.json, and of a generation_config.json if there is one.

        Where it is silent the defaults are those of transformers 5. Raises `ModelError` if the
        model is of a kind that is not supported, or a field is missing, of the wrong type, or out
        of range.
        """
        model_type, family = _family(config)
        _refuse_unsupported(config)

        vocab_size = config.integer("vocab_size", 1, 2**24)
        num_layers = config.integer("num_hidden_layers", 1, 4096)
        max_positions = config.integer(
            "max_position_embeddings", 1, MAX_POSITIONS, family.max_position_embeddings
        )
        num_heads, num_kv_heads, head_dim = _heads(config, family)
        attention_bias = model_type in ("llama", "qwen3") and config.boolean(
            "attention_bias", False
        )
        return cls(
            model_type=model_type,
            vocab_size=vocab_size,
            hidden_size=config.integer("hidden_size", 1, 2**20),
            intermediate_size=config.integer("intermediate_size", 1, 2**22),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rms_norm_eps=config.number("rms_norm_eps", 0.0, 1.0, 1e-6),
            rope=RopeConfig.from_json(config, max_positions),
            max_position_embeddings=max_positions,
            tie_word_embeddings=config.boolean("tie_word_embeddings", False),
            qkv_bias=model_type == "qwen2" or attention_bias,
            out_bias=attention_bias,
            mlp_bias=model_type == "llama" and config.boolean("mlp_bias", False),
            qk_norm=family.qk_norm,
            windows=_windows(config, model_type, num_layers),
            eos_token_ids=_eos_token_ids(config, generation, family, vocab_size),
            bos_token_id=_bos_token_id(config, family, vocab_size),
            dtype=_dtype(config),
        )

    def check_tokenizer(self, vocab_size: int, folder: Path) -> None:
        """Raise `ModelError` if a tokenizer's ids do not fit into the embedding of `folder`."""
        if vocab_size > self.vocab_size:
            raise ModelError(
                f"{folder}: the tokenizer has {vocab_size} tokens but the model's embedding only "
                f"{self.vocab_size}; use the tokenizer that belongs to it"
            )


def _family(config: JsonObject) -> tuple[str, _Family]:
    model_type = config.string("model_type")
    if model_type is None or model_type not in _FAMILIES:
        raise config.error(
            "model_type", f"one of {', '.join(_FAMILIES)}, the models that pagedrun can run"
        )
    return model_type, _FAMILIES[model_type]


def _refuse_unsupported(config: JsonObject) -> None:
    """Refuse what would change the arithmetic if it were silently ignored."""
    for name in ("quantization_config", "compression_config"):
        if config.has(name):
            raise ModelError(
                f"{config.origin}: {name} says that the weights are quantized, which pagedrun "
                "cannot read; use the float16, bfloat16 or float32 version of the model"
            )
    if config.has("per_layer_config"):
        raise ModelError(
            f"{config.origin}: per_layer_config gives layers different shapes, which pagedrun "
            "cannot run; use a model whose layers are alike"
        )
    if not config.boolean("is_causal", True):
        raise config.error("is_causal", "true: pagedrun runs causal decoders only")
    activation = config.string("hidden_act")
    if activation not in (None, "silu", "swish"):  # two names of one function
        raise config.error("hidden_act", '"silu" for a model of this type')


def _heads(config: JsonObject, family: _Family) -> tuple[int, int, int]:
    """Return (num_heads, num_kv_heads, head_dim)."""
    hidden_size = config.integer("hidden_size", 1, 2**20)
    num_heads = config.integer("num_attention_heads", 1, 2**14)
    # null means one key head per query head; silence means the family's default.
    silent = "num_key_value_heads" not in config and family.num_kv_heads is not None
    default = family.num_kv_heads if silent else num_heads
    num_kv_heads = config.integer("num_key_value_heads", 1, 2**14, default)
    if num_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}")
    if not config.has("head_dim") and family.head_dim is None and hidden_size % num_heads:
        raise config.error(
            "num_attention_heads", f"a divisor of hidden_size, {hidden_size}, without a head_dim"
        )
    head_dim = config.integer("head_dim", 1, 2**12, family.head_dim or hidden_size // num_heads)
    if head_dim % 2:
        raise ModelError(
            f"{config.origin}: head_dim is {head_dim} (given, or hidden_size / "
            "num_attention_heads); it must be even, because rotary embeddings turn pairs"
        )
    return num_heads, num_kv_heads, head_dim


def _windows(config: JsonObject, model_type: str, num_layers: int) -> tuple[int | None, ...]:
    """Return each layer's sliding window, read as transformers 5 reads it."""
    layer_types = _layer_types(config, num_layers)
    window: int | None = None
    if model_type == "mistral" or (
        model_type.startswith("qwen") and config.boolean("use_sliding_window", False)
    ):
        window = config.integer("sliding_window", 1, MAX_POSITIONS, _DEFAULT_WINDOW)
        if "sliding_window" in config and not config.has("sliding_window"):
            window = None  # an explicit null switches it off
    if layer_types is None:
        first = 0
        if model_type.startswith("qwen"):
            first = config.integer("max_window_layers", 0, 2**20, _DEFAULT_MAX_WINDOW_LAYERS)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    slides = [kind == "sliding_attention" for kind in layer_types]
    if any(slides) and window is None:
        raise config.error("layer_types", "without sliding_attention, as no window is in force")
    if model_type == "mistral" and window is not None and not all(slides):
        raise config.error("layer_types", "sliding_attention throughout, as sliding_window is set")
    return tuple(window if slide else None for slide in slides)


def _layer_types(config: JsonObject, num_layers: int) -> list[str] | None:
    layer_types = config.get("layer_types")
    if layer_types is None:
        return None
    known = ("full_attention", "sliding_attention", "attention")  # the last: an old name
    if (
        not isinstance(layer_types, list)
        or len(layer_types) != num_layers
        or any(kind not in known for kind in layer_types)
    ):
        raise config.error(
            "layer_types",
            f'a list of "full_attention" or "sliding_attention" for each of {num_layers} layers',
        )
    return layer_types


def _eos_token_ids(
    config: JsonObject, generation: JsonObject | None, family: _Family, vocab_size: int
) -> tuple[int, ...]:
    """Return every id that ends a sequence, without repeats, generation_config.json's first."""
    found: list[int] = []
    if generation is not None:
        found += _token_ids(generation, "eos_token_id", vocab_size)
    if "eos_token_id" in config:
        found += _token_ids(config, "eos_token_id", vocab_size)
    elif family.eos_token_id is not None and not found:
        found.append(family.eos_token_id)
    return tuple(dict.fromkeys(found))


def _bos_token_id(config: JsonObject, family: _Family, vocab_size: int) -> int | None:
    if "bos_token_id" not in config:
        return family.bos_token_id
    if not config.has("bos_token_id"):
        return None
    return config.integer("bos_token_id", 0, vocab_size - 1)


def _token_ids(fields: JsonObject, name: str, vocab_size: int) -> list[int]:
    value = fields.get(name)
    if value is None:
        return []
    ids = value if isinstance(value, list) else [value]
    if len(ids) > 1024 or not all(is_integer(item) and 0 <= item < vocab_size for item in ids):
        raise fields.error(name, f"a token id or a list of them, each from 0 to {vocab_size - 1}")
    return ids


def _dtype(config: JsonObject) -> DtypeName:
    name = "dtype" if config.has("dtype") else "torch_dtype"
    value = config.string(name) or "float32"
    if value not in _DTYPES:
        raise config.error(name, f"one of {', '.join(_DTYPES)}")
    return _DTYPES[value]
