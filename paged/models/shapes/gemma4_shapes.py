"""The config.json files of Gemma 4's decoders."""

from collections.abc import Mapping

from pagedrun.paged.values.json_value import JSONValue

_GEMMA4: dict[str, JSONValue] = {
    "model_type": "gemma4_text",
    "vocab_size": 262_144,
    "head_dim": 256,
    "global_head_dim": 512,
    "final_logit_softcapping": 30.0,
    "dtype": "bfloat16",
}
_SMALL: dict[str, JSONValue] = {
    **_GEMMA4,
    "num_attention_heads": 8,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
    "max_position_embeddings": 131_072,
}
_LARGE: dict[str, JSONValue] = {
    **_GEMMA4,
    "sliding_window": 1024,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262_144,
}
GEMMA4_SHAPES: Mapping[str, dict[str, JSONValue]] = {
    "gemma-4-e2b": {
        **_SMALL,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 35,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
        "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
    },
    "gemma-4-e4b": {
        **_SMALL,
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 42,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 18,
    },
    "gemma-4-12b": {
        **_LARGE,
        "model_type": "gemma4_unified_text",
        "hidden_size": 3840,
        "intermediate_size": 15_360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 1,
    },
    "gemma-4-26b-a4b": {
        **_LARGE,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    },
    "gemma-4-31b": {
        **_LARGE,
        "hidden_size": 5376,
        "intermediate_size": 21_504,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
    },
}
