"""Small models that pagedrun has no code for, and Transformers has."""

from pathlib import Path
from typing import Any

import torch

from tests.models.families import Tiny, save_tiny

LIBRARY: dict[str, Tiny] = {
    "gpt_neox": Tiny("GPTNeoXConfig", without=("head_dim", "num_key_value_heads")),
    "olmoe": Tiny(
        "OlmoeConfig",
        {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True},
        without=("head_dim",),
    ),
    "starcoder2": Tiny("Starcoder2Config", {"sliding_window": 50}, without=("head_dim",)),
    "cohere": Tiny("CohereConfig", {"logit_scale": 0.25}, without=("head_dim",)),
    "persimmon": Tiny("PersimmonConfig", without=("head_dim", "num_key_value_heads")),
    "phi": Tiny("PhiConfig", {"partial_rotary_factor": 0.5}, without=("head_dim",)),
    "gemma": Tiny("GemmaConfig"),
    "stablelm": Tiny("StableLmConfig", without=("head_dim",)),
    # Values narrower than keys, and experts beside one that all tokens pass.
    "deepseek_v3": Tiny(
        "DeepseekV3Config",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 32,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 1,
            "topk_group": 1,
        },
        without=("head_dim",),
    ),
    # Sinks, a window in every other layer, and experts that only the library computes.
    "gpt_oss": Tiny(
        "GptOssConfig",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 50,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt2": Tiny("GPT2Config", without=("head_dim", "num_key_value_heads", "intermediate_size")),
}


def save_library_model(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Save a model of `LIBRARY` with a tokenizer to a folder; return it as an oracle."""
    return save_tiny(LIBRARY[name], folder, dtype)
