"""ModernBERT: rotations, gated MLPs, norms before each part, and windows to both sides."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderLayerSpec, DecoderSpec
from pagedrun.paged.models.encoder_spec import encoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import AttentionSpec, Heads
from pagedrun.paged.models.modules.embedding import EncoderEmbeddingSpec
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import MlpSpec, check_activation
from pagedrun.paged.models.modules.norm import LayerNormSpec
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.models.quant.registry import linear_method
from pagedrun.paged.values.json_value import JSONValue

_THETAS = {
    "full_attention": ("global_rope_theta", 160_000.0),
    "sliding_attention": ("local_rope_theta", 10_000.0),
}


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    check_activation(config, "gelu")
    heads, hidden = Heads.from_json(config), config.integer("hidden_size", 1, 2**20)
    inner = config.integer("intermediate_size", 1, 2**22)
    eps, norm_bias = config.number("norm_eps", 0.0, 1.0, 1e-5), config.boolean("norm_bias", False)
    biases = config.boolean("attention_bias", False), config.boolean("mlp_bias", False)
    method, width = linear_method(config), heads.num_heads * heads.head_dim
    # Positions less than this away are seen, to both sides.
    window = config.integer("local_attention", 2, 2**20, 128) // 2 + 1
    ropes = {kind: _rope(config, kind, max_positions) for kind in _THETAS}

    def linear(name: str, out_features: int, in_features: int, has_bias: bool) -> LinearSpec:
        return LinearSpec((Projection(name, out_features),), in_features, has_bias, method)

    def norm(name: str) -> LayerNormSpec:
        return LayerNormSpec(name, hidden, eps, norm_bias)

    def layer(index: int, kind: str) -> DecoderLayerSpec:
        own = f"model.layers.{index}"
        mixer = AttentionSpec(
            *(heads.num_heads, heads.num_heads, heads.head_dim, heads.head_dim**-0.5),
            window=window if kind == "sliding_attention" else None,
            rope=ropes[kind],
            qkv=linear(f"{own}.attn.Wqkv", 3 * width, hidden, biases[0]),
            out=linear(f"{own}.attn.Wo", hidden, width, biases[0]),
        )
        ffn = MlpSpec(
            "gelu",
            linear(f"{own}.mlp.Wi", 2 * inner, hidden, biases[1]),
            linear(f"{own}.mlp.Wo", hidden, inner, biases[1]),
        )
        # The norm behind the embedding is that before the first attention.
        attention_norm = norm(f"{own}.attn_norm") if index else None
        return DecoderLayerSpec(attention_norm, mixer, norm(f"{own}.mlp_norm"), ffn)

    kinds = _kinds(config)
    embedding = EncoderEmbeddingSpec(
        "model.embeddings.tok_embeddings",
        config.integer("vocab_size", 1, 2**24),
        hidden,
        norm=norm("model.embeddings.norm"),
    )
    layers = tuple(layer(index, kind) for index, kind in enumerate(kinds))
    return encoder(embedding, layers, norm("model.final_norm"), max_positions, "model.")


def _kinds(config: JsonObject) -> list[str]:
    """Return the kind of attention of each layer."""
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    every = config.integer("global_attn_every_n_layers", 1, 4096, 3)
    default = ["sliding_attention" if i % every else "full_attention" for i in range(num_layers)]
    given = config.get("layer_types") or default
    if not isinstance(given, list) or len(given) != num_layers or not {*given} <= {*_THETAS}:
        raise config.error("layer_types", f"{num_layers} names, each {' or '.join(_THETAS)}")
    return [str(each) for each in given]


def _rope(config: JsonObject, kind: str, max_positions: int) -> RopeConfig:
    name, default = _THETAS[kind]
    theta = config.number(name, 1.001, 1e15, default)
    parameters = config.nested("rope_parameters")
    own = None if parameters is None else parameters.nested(kind)
    fields: dict[str, JSONValue] = {} if own is None else {"rope_parameters": dict(own.fields)}
    return RopeConfig.from_json(JsonObject(config.origin, fields), max_positions, theta=theta)


MODERNBERT = Family(_describe, 8192)
