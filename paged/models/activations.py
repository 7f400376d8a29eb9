"""How much memory a step takes besides weights and cache."""

from pagedrun.paged.models.model_config import ModelConfig


def activation_bytes(
    config: ModelConfig, dtype_bytes: int, num_tokens: int, num_logits: int
) -> int:
    """Return the bytes that a step's tensors take at the widest point of the network.

    dtype_bytes: of one number of the model's dtype. num_logits: tokens that logits are wanted of.
    """
    attention = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    width = max(attention + config.num_heads * config.head_dim, 3 * config.intermediate_size)
    per_token = (width + 2 * config.hidden_size) * dtype_bytes + 4 * config.hidden_size
    return num_tokens * per_token + num_logits * config.vocab_size * dtype_bytes
