"""Models that are asked for and do not run: what is missing, and what comes nearest."""

_MAMBA = "recurrent layers (Mamba-2)"
_LATENT = "latent attention (MLA)"
_SHARED = "layers that read the keys of other layers"
_INDEXED = "attention to keys selected by an indexer"
_LATENT_INDEXED = f"{_LATENT}, and {_INDEXED}"
_HYPER = "several residual streams (hyper-connections)"
_UNDESCRIBED = "a standard description of its layers"
_PREFIXES = "support for its tensor names"

# By the `model_type` of config.json.
UNSUPPORTED: dict[str, tuple[str, str]] = {
    "afmoe": ("attention with an output gate, and its form of sliding windows", "glm4_moe"),
    "bailing_hybrid": (f"{_LATENT}, and recurrent layers (Kimi Delta Attention)", "glm4_moe"),
    "cohere2": ("layer norms with a mean, and attention beside feed-forward", "ministral"),
    "deepseek_v2": (_LATENT, "qwen2_moe"),
    "deepseek_v3": (_LATENT, "glm4_moe"),
    "deepseek_v32": (_LATENT_INDEXED, "glm4_moe"),
    "deepseek_v4": (f"{_INDEXED}, and {_HYPER}", "qwen3_moe"),
    "exaone4": (_UNDESCRIBED, "olmo3"),
    "gemma": (_UNDESCRIBED, "gemma2"),
    "gemma3n_text": (_SHARED, "gemma3_text"),
    "gemma3n": (_SHARED, "gemma3"),
    "glm4_moe_lite": (_LATENT, "glm4_moe"),
    "kimi_linear": (f"{_LATENT}, and recurrent layers (Kimi Delta Attention)", "qwen3_moe"),
    "llama4": ("attention in chunks", "llama"),
    "llama4_text": ("attention in chunks", "llama"),
    "mistral4": (_LATENT, "ministral3"),
    "nemotron_h": (_MAMBA, "llama"),
    "phimoe": ("layer norms with a mean, and a router that masks scores", "mixtral"),
    "phi": ("layer norms with a mean", "phi3"),
    "qwen3_vl": (_PREFIXES, "qwen3"),
    "qwen3_vl_moe": (_PREFIXES, "qwen3_moe"),
    "qwen2_5_vl": (_PREFIXES, "qwen2"),
    # Large ones, of which each has layers that no other model has.
    "glm5_next": (_LATENT_INDEXED, "glm4_moe"),
    "glm_moe_dsa": (_LATENT_INDEXED, "glm4_moe"),
    "hy_v4": (_LATENT_INDEXED, "hunyuan_v1_dense"),
    "inkling_mm_model": (
        "attention scores that depend on distance instead of rotations",
        "qwen3_moe",
    ),
    "inkling_text": ("attention scores that depend on distance instead of rotations", "qwen3_moe"),
    "kimi_k25": (_LATENT, "glm4_moe"),
    "lfm3": ("attention with an output gate for each head", "lfm2"),
    "mistral_large4": (_LATENT_INDEXED, "ministral3"),
    "muse_spark": ("gated residual streams, and norms after attention heads", "qwen3_moe"),
    "qwen4_exp": (f"{_INDEXED}, and embeddings of several tokens", "qwen3_moe"),
}
