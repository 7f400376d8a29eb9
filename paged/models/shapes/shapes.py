"""The shapes of well-known models, so that one can be measured without its weights.

The fields are those of the models' public config.json files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.shapes.dense_shapes import DENSE_SHAPES
from pagedrun.paged.models.shapes.gemma4_shapes import GEMMA4_SHAPES
from pagedrun.paged.models.shapes.hybrid_shapes import HYBRID_SHAPES
from pagedrun.paged.models.shapes.mixture_shapes import MIXTURE_SHAPES
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.option_names import option

VOCAB_MULTIPLE = 64

_QWEN3: dict[str, JSONValue] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
    "bos_token_id": 151_643,
    "eos_token_id": 151_645,
    "dtype": "bfloat16",
}
# The same attention; 3 billion of its weights are read for a token.
_QWEN3_MOE: dict[str, JSONValue] = {
    **_QWEN3,
    "model_type": "qwen3_moe",
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_LLAMA3: dict[str, JSONValue] = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "max_position_embeddings": 131_072,
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
    "dtype": "bfloat16",
}
_LLAMA3_SCALING: dict[str, JSONValue] = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_CONFIGS: dict[str, dict[str, JSONValue]] = {
    "qwen3-0.6b": {
        **_QWEN3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
    },
    "qwen3-1.7b": {
        **_QWEN3,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
    },
    "qwen3-4b": {
        **_QWEN3,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    "qwen3-8b": {
        **_QWEN3,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "qwen3-14b": {
        **_QWEN3,
        "hidden_size": 5120,
        "intermediate_size": 17_408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "tie_word_embeddings": False,
    },
    "qwen3-32b": {
        **_QWEN3,
        "hidden_size": 5120,
        "intermediate_size": 25_600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "tie_word_embeddings": False,
    },
    "llama-3.2-1b": {
        **_LLAMA3,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "rope_scaling": {**_LLAMA3_SCALING, "factor": 32.0},
    },
    "llama-3.1-8b": {
        **_LLAMA3,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "tie_word_embeddings": False,
        "rope_scaling": {**_LLAMA3_SCALING, "factor": 8.0},
    },
    "llama-3.3-70b": {
        **_LLAMA3,
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "head_dim": 128,
        "tie_word_embeddings": False,
        "rope_scaling": {**_LLAMA3_SCALING, "factor": 8.0},
    },
    "qwen3-30b-a3b": {
        **_QWEN3_MOE,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
    "qwen3-235b-a22b": {
        **_QWEN3_MOE,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
    "qwen1.5-moe-a2.7b": {
        "model_type": "qwen2_moe",
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "use_sliding_window": False,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "bos_token_id": 151_643,
        "eos_token_id": 151_643,
        "dtype": "bfloat16",
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "sliding_window": None,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "bfloat16",
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "bos_token_id": 151_643,
        "eos_token_id": 151_643,
        "dtype": "bfloat16",
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "vocab_size": 152_064,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "sliding_window": 131_072,
        "max_window_layers": 28,
        "bos_token_id": 151_643,
        "eos_token_id": 151_643,
        "dtype": "bfloat16",
    },
    "mistral-7b": {
        "model_type": "mistral",
        "vocab_size": 32_768,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "sliding_window": None,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "bfloat16",
    },
    **DENSE_SHAPES,
    **MIXTURE_SHAPES,
    **HYBRID_SHAPES,
    **GEMMA4_SHAPES,
    # Not a published model: for tests, and to see a command work at once.
    "tiny": {
        **_QWEN3,
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
}
SHAPE_NAMES = tuple(_CONFIGS)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model without weights: its name and the fields of its config.json."""

    name: str
    fields: Mapping[str, JSONValue]

    @classmethod
    def named(cls, name: str, num_layers: int | None = None) -> "Shape":
        """Return a shape of `SHAPE_NAMES`, cut to `num_layers` if given.

        A cut shape keeps the proportions of the whole: its vocabulary shrinks with its depth, so
        that the embedding and the head weigh what they weigh in the whole model. Raises
        `UsageError` for a name that is not known, or more layers than the model has.
        """
        fields = _CONFIGS.get(name)
        if fields is None:
            raise UsageError(
                f"{option('shape')} {name} is not known; choose one of {', '.join(SHAPE_NAMES)}, "
                f"or give a model folder with {option('model')}"
            )
        model = cls(name, fields)
        whole = model.config.num_layers
        if num_layers is None or num_layers == whole:
            return model
        if not 1 <= num_layers <= whole:
            raise UsageError(
                f"{option('layers')} is {num_layers}; {name} has {whole} layers to choose from"
            )
        vocab_size = max(round(model.config.vocab_size * num_layers / whole / VOCAB_MULTIPLE), 1)
        changes: dict[str, JSONValue] = {
            "num_hidden_layers": num_layers,
            "vocab_size": vocab_size * VOCAB_MULTIPLE,
            "bos_token_id": 0,  # the model's own may lie past the smaller vocabulary
            "eos_token_id": 1,
            **_cut_lists(fields, num_layers, model.config.windows),
        }
        return cls(name, {**fields, **changes})

    @property
    def config(self) -> ModelConfig:
        """The shape as the engine reads it."""
        return ModelConfig.from_json(JsonObject(f"shape {self.name}", self.fields))


def _cut_lists(
    fields: Mapping[str, JSONValue], num_layers: int, windows: Sequence[int | None]
) -> dict[str, JSONValue]:
    """Return what else says something of each layer, for fewer layers; windows: of all of them."""
    changes: dict[str, JSONValue] = {}
    kinds = fields.get("layer_types")
    if isinstance(kinds, list):
        changes["layer_types"] = kinds[:num_layers]
    shared = fields.get("num_kv_shared_layers")
    if isinstance(shared, int):
        # Layers that others read the keys of are left, one of each kind.
        most = num_layers - windows.index(None) - 1
        changes["num_kv_shared_layers"] = max(min(shared * num_layers // len(windows), most), 0)
    return changes
