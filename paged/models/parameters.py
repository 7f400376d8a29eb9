"""The names and shapes of a decoder's tensors in a Hugging Face checkpoint."""

from pagedrun.paged.models.model_config import ModelConfig


def ignored_names(config: ModelConfig) -> tuple[str, ...]:
    """Return tensors that a checkpoint may hold without their being read, by name or its end.

    Buffers that older exports carry along, and the head that tied embeddings make redundant.
    """
    return ("rotary_emb.inv_freq", *(["lm_head.weight"] if config.tie_word_embeddings else []))


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return every tensor that the model reads, by name, with its shape."""
    hidden, head_dim = config.hidden_size, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    query, key = config.num_heads * head_dim, config.num_kv_heads * head_dim
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        if config.qk_norm:
            shapes[f"{attention}.q_norm.weight"] = (head_dim,)
            shapes[f"{attention}.k_norm.weight"] = (head_dim,)
        for name, rows, columns, bias in (
            (f"{attention}.q_proj", query, hidden, config.qkv_bias),
            (f"{attention}.k_proj", key, hidden, config.qkv_bias),
            (f"{attention}.v_proj", key, hidden, config.qkv_bias),
            (f"{attention}.o_proj", hidden, query, config.out_bias),
            (f"{mlp}.gate_proj", config.intermediate_size, hidden, config.mlp_bias),
            (f"{mlp}.up_proj", config.intermediate_size, hidden, config.mlp_bias),
            (f"{mlp}.down_proj", hidden, config.intermediate_size, config.mlp_bias),
        ):
            shapes[f"{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{name}.bias"] = (rows,)
    return shapes
