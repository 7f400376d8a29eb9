"""Self-attention: description and its reading from config.json.

`attention` gives the `AttentionSpec` of a layer from its heads, window, rotation and variants
(biases, norms of queries and keys, gates, sinks, caps, layers that read the keys of earlier
layers). Sliding windows and heads are read as in transformers 5. The computation is in
`attention_layer`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import (
    GroupedParts,
    InterleavedRotary,
    Parameter,
    Part,
    Role,
)
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.norm import NormForm, NormSpec
from pagedrun.paged.models.modules.relative import RelativeSpec
from pagedrun.paged.models.modules.rotary import MAX_POSITIONS, QueryScaling, RopeConfig
from pagedrun.paged.models.network import AttentionHeads
from pagedrun.paged.models.quant.registry import linear_method
from pagedrun.paged.values.errors import ModelError


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Description of self-attention with `num_heads` queries and `num_kv_heads` keys and values.

    `qkv` gives queries, keys and values side by side, `out` projects the results of the heads. If
    `has_gate`, gates come before the queries; their sigmoids multiply the results. `scale`
    multiplies scores, which are then soft-capped to -softcap .. softcap. `window` is None for full
    attention; with a window w the query at position p sees the keys at positions p - w < k <= p.
    `rope` None: no rotation.

    `q_norm` and `k_norm` have head_dim elements and normalize each head before its rotation, or
    after it if `norms_after_rotation`; or they span all heads, before it. `query_scaling`
    multiplies rotated queries. `sinks`, [num_heads] float32, are learned scores that join the
    softmax of each head and have no value.

    With `value_norm_eps` values pass an RMS norm of each head without a weight. With
    `keys_are_values` they are the keys before norm and rotation. `source` is the index of an
    earlier layer with the keys and values to read, in which case `qkv` gives queries alone; None:
    the layer has its own. `relative`: scores that depend on the distance of query and key, in a
    network that is not causal.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    rope: RopeConfig | None
    qkv: LinearSpec
    out: LinearSpec
    q_norm: NormSpec | None = None
    k_norm: NormSpec | None = None
    norms_after_rotation: bool = False
    softcap: float | None = None
    query_scaling: QueryScaling | None = None
    sinks: Parameter | None = None
    value_norm_eps: float | None = None
    keys_are_values: bool = False
    source: int | None = None
    has_gate: bool = False
    relative: RelativeSpec | None = None

    @property
    def heads(self) -> AttentionHeads:
        """Heads and window, the key of its KV group."""
        return AttentionHeads(self.num_heads, self.num_kv_heads, self.head_dim, self.window)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        others = (self.q_norm, self.k_norm, self.sinks)
        terms = () if self.relative is None else self.relative.parts
        return self.qkv, self.out, *(each for each in others if each is not None), *terms

    @property
    def normalizes_all_heads(self) -> bool:
        """True if the norms span all heads of a token."""
        return self.q_norm is not None and self.q_norm.size != self.head_dim

    @property
    def width(self) -> int:
        """Peak numbers of activation of a token: q, k, v, rotated q and the result."""
        projected = self.num_heads + 2 * self.num_kv_heads
        normalized = 2 * projected if self.normalizes_all_heads else 0
        gate = 2 * self.num_heads if self.has_gate else 0  # and the gated results
        terms = 0 if self.relative is None else self.relative.width(self.num_heads)
        return (2 * self.num_heads + projected + normalized + gate) * self.head_dim + terms


@dataclass(frozen=True, slots=True)
class QkNormForm:
    """Tensor names of the norms of queries and keys, of each head or `across_heads`."""

    query: str = "q_norm"
    key: str = "k_norm"
    across_heads: bool = False
    after_rotation: bool = False


@dataclass(frozen=True, slots=True)
class Heads:
    """Numbers of query heads and of key and value heads, and their size."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def from_json(
        cls, config: JsonObject, *, num_kv_heads: int | None = None, head_dim: int | None = None
    ) -> "Heads":
        """Read config.json, with a family's defaults for `num_kv_heads` and `head_dim`.

        Default None: one key head a query head, and heads of hidden_size / num_heads. Raises
        `ModelError` for inconsistent numbers.
        """
        hidden_size = config.integer("hidden_size", 1, 2**20)
        num_heads = config.integer("num_attention_heads", 1, 2**14)
        # null means one key head per query head; a missing field means the family's default.
        default = num_heads if "num_key_value_heads" in config else num_kv_heads or num_heads
        num_kv_heads = config.integer("num_key_value_heads", 1, 2**14, default)
        if num_heads % num_kv_heads:
            raise config.error(
                "num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}"
            )
        if not config.has("head_dim") and head_dim is None and hidden_size % num_heads:
            raise config.error(
                "num_attention_heads",
                f"a divisor of hidden_size, {hidden_size}, without a head_dim",
            )
        head_dim = config.integer("head_dim", 1, 2**12, head_dim or hidden_size // num_heads)
        if head_dim % 2:
            raise ModelError(
                f"{config.origin}: head_dim is {head_dim} (given, or hidden_size / "
                "num_attention_heads); it must be even, because rotary embeddings rotate pairs"
            )
        return cls(num_heads, num_kv_heads, head_dim)


def attention(
    config: JsonObject,
    heads: Heads,
    norm: NormForm,
    rope: RopeConfig | Sequence[RopeConfig | None] | None,
    windows: Sequence[int | None] | None,
    layer: int,
    *,
    bias: bool = False,
    out_bias: bool | None = None,
    is_fused: bool = False,
    qk_norm: QkNormForm | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    interleaved_rotary: bool = False,
    query_scaling: QueryScaling | None = None,
    has_sinks: bool = False,
    keys_are_values: bool = False,
    normalizes_values: bool = False,
    source: int | None = None,
    has_gate: bool = False,
    out_name: str = "o_proj",
) -> AttentionSpec:
    """Return the attention of a layer under the tensor names of Llama, whose defaults it has.

    `rope` is the rotation of all layers or a list of them, None for none; `windows` None: full
    attention. `layer` comes last, so that a `partial` without it is a `MixerOfLayer`.

    `bias`: of queries, keys and values, and of the output unless `out_bias` says otherwise.
    `is_fused`: one tensor `qkv_proj` instead of three. `has_gate`: `q_proj` gives the query and
    then the gate of each head. `out_name`: name of `o_proj`. `scale` None: head_dim^-0.5.
    `interleaved_rotary`: the checkpoint rotates elements 2i and 2i + 1 as a pair.
    `keys_are_values`: there is no `v_proj`. `normalizes_values`: values pass a norm of each head
    without a weight. `softcap`, `query_scaling` and `source` are those of `AttentionSpec`. Raises
    `ModelError` for a rotation of an odd number of elements.
    """
    rope = rope if rope is None or isinstance(rope, RopeConfig) else rope[layer]
    dim, method = heads.head_dim, linear_method(config)
    hidden = config.integer("hidden_size", 1, 2**20)
    num_query, num_key = heads.num_heads * dim, heads.num_kv_heads * dim
    prefix = f"model.layers.{layer}.self_attn"
    rotary_dim = dim if rope is None else int(dim * rope.partial_rotary_factor)
    if rotary_dim % 2 or not rotary_dim:
        wanted = f"a factor that rotates an even number of a head's {dim} elements"
        raise config.error("partial_rotary_factor", wanted)
    pairs = InterleavedRotary(dim, rotary_dim) if interleaved_rotary and rope else None
    query = Projection(f"{prefix}.q_proj", num_query, pairs)
    if has_gate:
        order = GroupedParts((dim, dim), order=(1, 0))
        query = Projection(f"{prefix}.q_proj", 2 * num_query, order)
    parts = [query]
    if is_fused:
        parts = [Projection(f"{prefix}.qkv_proj", num_query + 2 * num_key)]
    elif source is None:
        parts.append(Projection(f"{prefix}.k_proj", num_key, pairs))
        if not keys_are_values:
            parts.append(Projection(f"{prefix}.v_proj", num_key))
    q_norm = k_norm = None
    if qk_norm is not None:
        sizes = (num_query, num_key) if qk_norm.across_heads else (dim, dim)
        q_norm = norm.named(f"{prefix}.{qk_norm.query}", sizes[0])
        if source is None:
            k_norm = norm.named(f"{prefix}.{qk_norm.key}", sizes[1])
    sinks = Parameter(f"{prefix}.sinks", (heads.num_heads,), Role.BIAS, in_float32=True)
    out = (Projection(f"{prefix}.{out_name}", hidden),)
    return AttentionSpec(
        heads.num_heads,
        heads.num_kv_heads,
        dim,
        scale=dim**-0.5 if scale is None else scale,
        window=None if windows is None else windows[layer],
        rope=rope,
        qkv=LinearSpec(tuple(parts), hidden, bias, method),
        out=LinearSpec(out, num_query, bias if out_bias is None else out_bias, method),
        q_norm=q_norm,
        k_norm=k_norm,
        norms_after_rotation=qk_norm is not None and qk_norm.after_rotation,
        softcap=softcap,
        query_scaling=query_scaling,
        sinks=sinks if has_sinks else None,
        value_norm_eps=norm.eps if normalizes_values else None,
        keys_are_values=keys_are_values,
        source=source,
        has_gate=has_gate,
    )


# Default window, and default index of the first layer with a window (Qwen).
_DEFAULT_WINDOW = 4096
_DEFAULT_MAX_WINDOW_LAYERS = 28


def sliding_window(config: JsonObject) -> int | None:
    """Return `sliding_window`; an explicit null disables it."""
    if "sliding_window" in config and not config.has("sliding_window"):
        return None
    return config.integer("sliding_window", 1, MAX_POSITIONS, _DEFAULT_WINDOW)


def layer_windows(
    config: JsonObject, window: int | None, first_layer: int = 0
) -> tuple[int | None, ...]:
    """Return the window of each layer by `layer_types`, else of all layers from `first_layer`.

    Raises `ModelError` for sliding layers without a window.
    """
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    layer_types = _layer_types(config, num_layers)
    if layer_types is None:
        return tuple(window if layer >= first_layer else None for layer in range(num_layers))
    slides = [kind == "sliding_attention" for kind in layer_types]
    if any(slides) and window is None:
        raise config.error("layer_types", "without sliding_attention, as no window is enabled")
    return tuple(window if slide else None for slide in slides)


def periodic_windows(config: JsonObject, window: int | None, period: int) -> tuple[int | None, ...]:
    """Return the window of each layer by `layer_types`, else of all but every `period`th layer.

    Raises `ModelError` for sliding layers without a window.
    """
    if window is None:
        raise config.error(
            "sliding_window", "an integer of at least 1, for the layers with a sliding window"
        )
    if config.get("layer_types") is not None:
        return layer_windows(config, window)
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    return tuple(window if layer % period else None for layer in range(1, num_layers + 1))


def upper_windows(config: JsonObject) -> tuple[int | None, ...]:
    """Return the windows of layers from `max_window_layers` on, if windows are enabled."""
    window = sliding_window(config) if config.boolean("use_sliding_window", False) else None
    first_layer = 0
    if config.get("layer_types") is None:
        first_layer = config.integer("max_window_layers", 0, 2**20, _DEFAULT_MAX_WINDOW_LAYERS)
    return layer_windows(config, window, first_layer)


def uniform_windows(config: JsonObject, window: int | None) -> tuple[int | None, ...]:
    """Return the same window for each layer; `layer_types` is ignored."""
    return (window,) * config.integer("num_hidden_layers", 1, 4096)


def alternating_windows(config: JsonObject) -> tuple[int | None, ...]:
    """Return windows by `layer_types`, else of layers 0, 2, ... below `max_window_layers`."""
    window = sliding_window(config) if config.boolean("use_sliding_window", False) else None
    if config.get("layer_types") is not None:
        return layer_windows(config, window)
    last = config.integer("max_window_layers", 0, 2**20, _DEFAULT_MAX_WINDOW_LAYERS)
    windows = uniform_windows(config, window)
    return tuple(
        each if layer % 2 == 0 and layer < last else None for layer, each in enumerate(windows)
    )


def _layer_types(config: JsonObject, num_layers: int) -> list[str] | None:
    layer_types = config.get("layer_types")
    if layer_types is None:
        return None
    known = ("full_attention", "sliding_attention", "attention")  # the last: an old name
    given = layer_types if isinstance(layer_types, list) else []
    kinds = [kind for kind in given if isinstance(kind, str) and kind in known]
    if not len(given) == len(kinds) == num_layers:
        raise config.error(
            "layer_types",
            f'a list of "full_attention" or "sliding_attention" for each of {num_layers} layers',
        )
    return kinds
