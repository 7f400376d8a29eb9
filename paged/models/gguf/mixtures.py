"""Mixtures of experts as llama.cpp writes them: each projection of all experts is one tensor."""

from pagedrun.paged.models.gguf.architecture import Architecture


def _names(block: str) -> dict[str, str]:
    experts = {f"ffn_{each}_exps": f"{block}.experts.{each}_proj" for each in _PROJECTIONS}
    return {"ffn_gate_inp": f"{block}.gate", **experts}


_PROJECTIONS = ("gate", "up", "down")
_COUNTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
QWEN3_MOE = Architecture(
    "qwen3_moe",
    {**_COUNTS, "expert_feed_forward_length": "moe_intermediate_size"},
    # llama.cpp knows no other way, so that its files do not say.
    lambda own, file: {"norm_topk_prob": True},
    layer_names=_names("mlp"),
)
# What llama.cpp calls a Llama with experts.
MIXTRAL = Architecture(
    "mixtral", _COUNTS, layer_names=_names("block_sparse_moe"), turns_neighbours=True
)
