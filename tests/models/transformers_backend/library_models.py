"""Small models that pagedrun has no code for, and Transformers has."""

from tests.support.families import Tiny

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
_NO_KV_HEADS = ("head_dim", "num_key_value_heads")
_MAMBA = ("num_attention_heads", "intermediate_size", "max_position_embeddings", *_NO_KV_HEADS)
# Models that Transformers computes with caches of its own.
PLAIN: dict[str, Tiny] = {
    # Nothing but states.
    "mamba": Tiny("MambaConfig", {"state_size": 8, "time_step_rank": 4}, without=_MAMBA),
    # Attention by code of its own: biases of positions, rotations.
    "bloom": Tiny(
        "BloomConfig",
        {"seq_length": 512, "tie_word_embeddings": False},
        without=("intermediate_size", "max_position_embeddings", *_NO_KV_HEADS),
    ),
    "falcon": Tiny("FalconConfig", without=("intermediate_size", *_NO_KV_HEADS)),
    "gptj": Tiny("GPTJConfig", {"rotary_dim": 8}, without=("intermediate_size", *_NO_KV_HEADS)),
    # Both in each layer.
    "falcon_h1": Tiny(
        "FalconH1Config",
        {
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_d_ssm": 64,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 16,
        },
    ),
}
