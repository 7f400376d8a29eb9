"""DeBERTa-v2 and -v3: BERT whose scores have terms of content and distance."""

from collections.abc import Callable
from dataclasses import replace

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import Parameter, Role
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.encoder_spec import BertForm, BertNames, bert
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.norm import LayerNormSpec
from pagedrun.paged.models.modules.relative import (
    Disentangled,
    DistanceVectors,
    PositionProducts,
)
from pagedrun.paged.models.quant.registry import linear_method

_NAMES = BertNames(
    qkv=("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj")
)
# Tensors that checkpoints have even if their config does not use them.
_UNUSED = (
    *("encoder.LayerNorm.weight", "encoder.LayerNorm.bias", "encoder.rel_embeddings.weight"),
    "embeddings.position_embeddings.weight",
)
_C2P, _P2C = "c2p", "p2c"


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    hidden = config.integer("hidden_size", 1, 2**20)
    head_dim = hidden // config.integer("num_attention_heads", 1, 2**14)
    if config.integer("attention_head_size", 1, 2**12, head_dim) != head_dim:
        raise config.error("attention_head_size", f"{head_dim}, hidden_size / num_attention_heads")
    if config.integer("embedding_size", 1, 2**20, hidden) != hidden:
        raise config.error("embedding_size", f"hidden_size, {hidden}")
    if config.integer("conv_kernel_size", 0, 2**10, 0):
        raise config.error(
            "conv_kernel_size", "0: pagedrun has no convolution behind the first layer"
        )
    kinds = _attention_kinds(config)
    form = BertForm(
        num_types=0,
        eps=1e-7,
        names=_NAMES,
        has_positions=config.boolean("position_biased_input", True),
        score_terms=1 + len(kinds),
        relative=_relative(config, hidden, max_positions, kinds),
    )
    network = bert(config, max_positions, "deberta.", form)
    return replace(network, ignored=(*network.ignored, *_UNUSED))


def _attention_kinds(config: JsonObject) -> set[str]:
    """Return the terms of scores beside q · k; each is part of the scale, even if it is 0."""
    given = config.get("pos_att_type") or []
    named = given.lower().split("|") if isinstance(given, str) else given
    kinds = {str(each).strip() for each in named} if isinstance(named, list) else {"?"}
    if not kinds <= {_C2P, _P2C}:
        raise config.error("pos_att_type", f'a list of "{_C2P}" and "{_P2C}", or of one of them')
    return kinds


def _relative(
    config: JsonObject, hidden: int, max_positions: int, kinds: set[str]
) -> Callable[[str], Disentangled | None]:
    """Return the terms of a layer by the prefix of its tensors."""
    if not config.boolean("relative_attention", False) or not kinds:
        return lambda prefix: None
    most = config.integer("max_relative_positions", -1, 2**20, -1)
    most = max_positions if most < 1 else most
    buckets = config.integer("position_buckets", -1, 2**16, -1)
    # Of so many, the first half are single distances; the logarithms need some beyond.
    if buckets > 0 and not 2 <= buckets // 2 + 1 < most:
        raise config.error("position_buckets", f"2 or more, and half of it below {most - 1}")
    span = buckets if buckets > 0 else most
    norms = [each.strip() for each in (config.string("norm_rel_ebd") or "none").lower().split("|")]
    if not {*norms} <= {"none", "layer_norm"}:
        raise config.error("norm_rel_ebd", '"none" or "layer_norm"')
    eps = config.number("layer_norm_eps", 0.0, 1.0, 1e-7)
    norm = LayerNormSpec("model.encoder.LayerNorm", hidden, eps) if "layer_norm" in norms else None
    shares = config.boolean("share_att_key", False)
    embeddings = Parameter("model.encoder.rel_embeddings.weight", (2 * span, hidden), Role.MATRIX)
    heads, method = Heads.from_json(config), linear_method(config)
    width = heads.num_heads * heads.head_dim

    def product(kind: str, name: str) -> PositionProducts | None:
        if kind not in kinds:
            return None
        part = (Projection(name, width),)
        linear = LinearSpec(part, hidden, has_bias=True, method=method, keep_precision=True)
        return PositionProducts(linear, 2 * span, shares)

    def relative(prefix: str) -> Disentangled:
        own = f"{prefix}.attention.self"
        start = "" if shares else "pos_"
        return Disentangled(
            DistanceVectors(embeddings, norm),
            by_query=product(_C2P, f"{own}.{start}key_proj"),
            by_key=product(_P2C, f"{own}.{start}query_proj"),
            num_buckets=buckets if buckets > 0 else None,
            max_distance=most,
        )

    return relative


DEBERTA_V2 = Family(_describe, 512)
