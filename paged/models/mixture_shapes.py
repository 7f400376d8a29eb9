"""The config.json files of well-known mixtures of experts, besides those of Qwen's kind."""

from collections.abc import Mapping

from pagedrun.paged.values.json_value import JSONValue

_GPT_OSS: dict[str, JSONValue] = {
    "model_type": "gpt_oss",
    "vocab_size": 201_088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
    "eos_token_id": 200_002,
    "dtype": "bfloat16",
}
MIXTURE_SHAPES: Mapping[str, dict[str, JSONValue]] = {
    "gpt-oss-20b": {**_GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32},
    "gpt-oss-120b": {**_GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128},
}
