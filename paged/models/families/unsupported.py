"""Models that are asked for and do not run: what is missing, and what comes nearest."""

_MAMBA = "recurrent layers (Mamba-2)"
_LATENT = "latent attention (MLA)"
_MIXTURE = "mixtures of experts of its kind"
_SHARED = "layers that read the keys of others"

# By the `model_type` of config.json.
UNSUPPORTED: dict[str, tuple[str, str]] = {
    "cohere2": ("layer norms with a mean, and attention beside feed-forward", "ministral"),
    "deepseek_v3": (_LATENT, "qwen3"),
    "exaone4": ("norms of its kind", "olmo3"),
    "gemma": ("the first Gemma's layers", "gemma2"),
    "gemma3n": (_SHARED, "gemma3"),
    "glm4_moe": (_MIXTURE, "qwen3_moe"),
    "glm4_moe_lite": (_LATENT, "glm4"),
    "granitemoehybrid": (_MAMBA, "granite"),
    "kimi_linear": (_LATENT, "qwen3"),
    "lfm2_moe": ("short convolutions", "qwen3"),
    "llama4": ("attention in chunks", "llama"),
    "llama4_text": ("attention in chunks", "llama"),
    "minimax_m2": (_MIXTURE, "qwen3_moe"),
    "mistral4": (_LATENT, "ministral3"),
    "nemotron_h": (_MAMBA, "llama"),
    "olmoe": (_MIXTURE, "mixtral"),
    "phi": ("layer norms with a mean", "phi3"),
    "qwen3_vl": ("the names of its tensors", "qwen3"),
}
