"""Small models of every family, as transformers makes them, with weights that show what is missing.

Fresh weights hide much: norms of ones, biases of zeros, and an embedding that is scaled up so far
that a model repeats one token.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.conftest import INITIALIZER_RANGE, save_byte_tokenizer

SLIDING, FULL = "sliding_attention", "full_attention"
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0}
_BASE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": INITIALIZER_RANGE,
    "bos_token_id": None,
    "pad_token_id": None,
    "eos_token_id": 258,
}


@dataclass(frozen=True)
class Tiny:
    """A model of one type; `fields` go to the config class of transformers."""

    config_class: str
    fields: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()  # fields of the base that the class does not know

    def config(self) -> Any:
        fields = {**_BASE, **self.fields}
        for name in self.without:
            del fields[name]
        return getattr(transformers, self.config_class)(**fields)


_GEMMA4 = {"global_head_dim": 32, "sliding_window": 50}
_PHI_FACTORS = {
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.4, 1.7],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0],
}
TINY: dict[str, Tiny] = {
    "granite": Tiny(
        "GraniteConfig",
        {
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.1,
            "residual_multiplier": 0.4,
            "logits_scaling": 4.0,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "olmo2": Tiny("Olmo2Config", without=("head_dim",)),
    "olmo3": Tiny(
        "Olmo3Config",
        {
            "num_hidden_layers": 4,
            "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
            "sliding_window": 50,
            "rope_parameters": {
                FULL: {**_YARN, "original_max_position_embeddings": 256},
                SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
        without=("head_dim",),
    ),
    "smollm3": Tiny("SmolLM3Config", {"num_hidden_layers": 4}),
    "glm4": Tiny("Glm4Config"),
    "phi3": Tiny("Phi3Config", without=("head_dim",)),
    "phi4-mini": Tiny(
        "Phi3Config",
        {
            "tie_word_embeddings": True,
            "original_max_position_embeddings": 1024,
            "max_position_embeddings": 4096,
            "partial_rotary_factor": 0.75,
            "rope_parameters": {"rope_type": "longrope", **_PHI_FACTORS},
        },
        without=("head_dim",),
    ),
    "seed_oss": Tiny("SeedOssConfig", {"attention_out_bias": True}),
    "hunyuan_v1_dense": Tiny(
        "HunYuanDenseV1Config",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 1.0, "alpha": 3.0}},
    ),
    "ernie4_5": Tiny("Ernie4_5Config", {"use_bias": True, "tie_word_embeddings": True}),
    "ministral": Tiny("MinistralConfig", {"layer_types": [SLIDING, FULL], "sliding_window": 50}),
    "ministral3": Tiny(
        "Ministral3Config",
        {
            "rope_parameters": {
                **_YARN,
                "original_max_position_embeddings": 64,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            }
        },
    ),
    "gpt_oss": Tiny(
        "GptOssConfig",
        {
            "num_hidden_layers": 4,
            "intermediate_size": 64,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "sliding_window": 50,
            "swiglu_limit": 1.5,
            "rope_parameters": {
                **_YARN,
                "original_max_position_embeddings": 256,
                "truncate": False,
            },
        },
    ),
    "gemma2": Tiny(
        "Gemma2Config",
        {
            "num_hidden_layers": 4,
            "query_pre_attn_scalar": 24,
            "sliding_window": 50,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma4": Tiny(
        "Gemma4TextConfig",
        {
            **_GEMMA4,
            "num_hidden_layers": 4,
            "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": 10.0,
        },
    ),
    "gemma4-e": Tiny(
        "Gemma4TextConfig",
        {
            **_GEMMA4,
            "num_hidden_layers": 6,
            "layer_types": [SLIDING, FULL] * 3,
            "num_key_value_heads": 1,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 330,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4-moe": Tiny(
        "Gemma4TextConfig",
        {
            **_GEMMA4,
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, SLIDING, FULL],
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 3,
            "moe_intermediate_size": 32,
        },
    ),
    "gemma4_unified": Tiny(
        "Gemma4UnifiedTextConfig",
        {
            **_GEMMA4,
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, FULL, SLIDING],  # the last one is full all the same
            "num_kv_shared_layers": 1,
            "attention_bias": True,
        },
    ),
    "gemma3": Tiny(
        "Gemma3TextConfig",
        {
            "num_hidden_layers": 4,
            "layer_types": [SLIDING, SLIDING, FULL, SLIDING],
            "query_pre_attn_scalar": 24,
            "sliding_window": 50,
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
                SLIDING: {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
}
LINEAR = "linear_attention"
_DELTA_NET: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [1, 1, 0],
    },
}
_EXPERTS: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
# Models with recurrent layers.
RECURRENT: dict[str, Tiny] = {
    "lfm2": Tiny(
        "Lfm2Config",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", FULL, "conv", FULL],
            "block_multiple_of": 16,
        },
        without=("head_dim",),
    ),
    "lfm2-biases": Tiny(
        "Lfm2Config",
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", FULL, "conv"],
            "conv_bias": True,
            "conv_L_cache": 4,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
        },
        without=("head_dim",),
    ),
    "lfm2_moe": Tiny(
        "Lfm2MoeConfig",
        {
            **{name: value for name, value in _EXPERTS.items() if "shared" not in name},
            "layer_types": ["conv", FULL, "conv", FULL],
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.5,
        },
        without=("head_dim",),
    ),
    "qwen3_5": Tiny(
        "Qwen3_5TextConfig",
        {**_DELTA_NET, "num_hidden_layers": 5, "layer_types": [LINEAR, LINEAR, FULL, LINEAR, FULL]},
    ),
    "qwen3_5-tied": Tiny(
        "Qwen3_5TextConfig",
        {
            **_DELTA_NET,
            "num_hidden_layers": 4,
            "head_dim": 32,
            "linear_num_key_heads": 4,
            "linear_key_head_dim": 16,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_5_moe": Tiny(
        "Qwen3_5MoeTextConfig", {**_DELTA_NET, **_EXPERTS}, without=("intermediate_size",)
    ),
    "qwen3_next": Tiny("Qwen3NextConfig", {**_DELTA_NET, **_EXPERTS, "mlp_only_layers": [1]}),
}


def save_tiny(what: str | Tiny, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Save a model, by its name in `TINY` or `RECURRENT`, with a tokenizer to a folder; return it
    as an oracle, in float32."""
    config = ({**TINY, **RECURRENT}[what] if isinstance(what, str) else what).config()
    with torch.random.fork_rng():
        torch.manual_seed(20_261_122)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        disturb(model)
    model.to(dtype).save_pretrained(folder)
    save_byte_tokenizer(folder, adds_bos=False)
    return model.float().eval()


@torch.no_grad()
def disturb(model: Any) -> None:
    """Change what is fresh, and so could be forgotten unseen."""
    kind = type(model).__name__
    adds_one = kind.startswith(("Gemma2", "Gemma3", "Qwen3_5", "Qwen3Next"))
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith("layer_scalar"):
            parameter.fill_(0.9)
        elif name.endswith("router.scale"):
            parameter.uniform_(4, 12)  # at 1 some experts come within 3e-6 of being chosen
        elif name.endswith("per_expert_scale"):
            parameter.uniform_(0.5, 1.5)
        elif "norm" in name:
            around = 0.0 if adds_one and "linear_attn" not in name else 1.0
            parameter.uniform_(around - 0.3, around + 0.3)
        elif name.endswith("sinks"):
            parameter.normal_()
        elif name.endswith("dt_bias"):
            parameter.uniform_(-2.0, 2.0)
        elif name.endswith("bias"):
            parameter.normal_(std=INITIALIZER_RANGE)
    embedding = model.get_input_embeddings()
    config = model.config.get_text_config()
    scale = getattr(config, "embedding_multiplier", 1.0)
    if kind.startswith("Gemma"):
        scale = config.hidden_size**0.5
    embedding.weight /= scale
