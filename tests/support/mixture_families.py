"""Small models with mixtures of experts whose routers are each of another kind."""

from typing import Any

from tests.support.families import FULL, SLIDING, Tiny

_EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
_SIGMOID: dict[str, Any] = {
    "num_hidden_layers": 3,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "attention_bias": True,
}
_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.4,
    "logits_scaling": 4.0,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
}
_ATTENTION_ONLY: dict[str, Any] = {
    **_GRANITE,
    "layer_types": ["attention", "attention"],
    "shared_intermediate_size": 48,
}
MIXTURES: dict[str, Tiny] = {
    "glm4_moe": Tiny("Glm4MoeConfig", {**_SIGMOID, "use_qk_norm": True}),
    "glm4_moe-plain": Tiny(
        "Glm4MoeConfig",
        {**_SIGMOID, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    ),
    "dots1": Tiny(
        "Dots1Config", {**_SIGMOID, "layer_types": [SLIDING, FULL, SLIDING], "sliding_window": 50}
    ),
    "ernie4_5_moe": Tiny(
        "Ernie4_5_MoeConfig",
        {
            "num_hidden_layers": 4,
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 2,
            "tie_word_embeddings": True,
        },
    ),
    "olmoe": Tiny("OlmoeConfig", _EXPERTS, without=("head_dim",)),
    "minimax_m2": Tiny(
        "MiniMaxM2Config",
        {"num_local_experts": 8, "num_experts_per_tok": 3, "rotary_dim": 8},
    ),
    "hunyuan_v1_moe": Tiny(
        "HunYuanMoEV1Config",
        {
            "num_experts": 8,
            "moe_topk": 3,
            "rope_parameters": {"rope_type": "dynamic", "factor": 1.0, "alpha": 3.0},
        },
    ),
    "granitemoe": Tiny("GraniteMoeConfig", _GRANITE),
    "granitemoeshared": Tiny(
        "GraniteMoeSharedConfig", {**_GRANITE, "shared_intermediate_size": 48}
    ),
    "granitemoehybrid": Tiny(
        "GraniteMoeHybridConfig", {**_ATTENTION_ONLY, "tie_word_embeddings": True}
    ),
    "granitemoehybrid-dense": Tiny(
        "GraniteMoeHybridConfig",
        {**_ATTENTION_ONLY, "num_local_experts": 0, "position_embedding_type": "rope"},
    ),
}
# Of `TINY` and `MIXTURES`, one of each kind: biases and tied weights, norms behind, fused
# projections, mixed windows with caps, queries that grow, norms after rotation, sinks, keys that
# are values with other heads by kind, layers that read earlier keys, experts beside a dense layer,
# routers.
ONE_OF_EACH_KIND = [
    *("granite", "olmo2", "phi3", "gemma2", "ministral3", "hunyuan_v1_dense", "gpt_oss", "gemma4"),
    *("gemma4-e", "gemma4-moe", "glm4_moe", "minimax_m2", "granitemoehybrid"),
]
