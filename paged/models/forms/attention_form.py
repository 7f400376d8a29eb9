"""AttentionForm: how a family's attention differs from Llama's."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.forms.heads import Heads
from pagedrun.paged.models.forms.norm_form import NormForm
from pagedrun.paged.models.linears.registry import linear_method
from pagedrun.paged.models.network.attention_spec import AttentionSpec
from pagedrun.paged.models.network.checkpoint.interleaved_parts import InterleavedParts
from pagedrun.paged.models.network.checkpoint.neighbour_pairs import NeighbourPairs
from pagedrun.paged.models.network.linear_spec import LinearSpec, Projection
from pagedrun.paged.models.network.query_temper import QueryTemper
from pagedrun.paged.models.network.sinks_spec import SinksSpec
from pagedrun.paged.models.rope_config import RopeConfig


@dataclass(frozen=True, slots=True)
class QkNormForm:
    """Norms of queries and keys by their tensors' names: of each head, or of all heads together."""

    query: str = "q_norm"
    key: str = "k_norm"
    of_all_heads: bool = False
    after_rotation: bool = False


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """Attention of all layers; what is not given is as in Llama.

    `windows` and `ropes` have an item a layer; None in `windows` is full attention, None in `ropes`
    no rotation. `is_fused`: one tensor `qkv_proj` in place of three. `has_gate`: `q_proj` gives
    each head's query and then its gate. `out_name`: what `o_proj` is called. `scale` None:
    head_dim^-0.5. `turns_neighbours`: rotations pair elements 2i and 2i + 1 in the checkpoint.
    `softcap` and `temper` are as in `AttentionSpec`.

    `full_heads` are those of layers without a window where they differ, `full_keys_are_values` says
    that these have no `v_proj`. `normalizes_values`: each head's value passes a norm without a
    weight. `sources`, if given, has an item a layer too: the layer whose keys and values it reads,
    None for its own.
    """

    heads: Heads
    windows: Sequence[int | None]
    ropes: Sequence[RopeConfig | None]
    qkv_bias: bool = False
    out_bias: bool = False
    is_fused: bool = False
    qk_norm: QkNormForm | None = None
    scale: float | None = None
    softcap: float | None = None
    turns_neighbours: bool = False
    temper: QueryTemper | None = None
    has_sinks: bool = False
    full_heads: Heads | None = None
    full_keys_are_values: bool = False
    normalizes_values: bool = False
    sources: Sequence[int | None] = ()
    has_gate: bool = False
    out_name: str = "o_proj"

    @property
    def num_layers(self) -> int:
        """Layers of the decoder."""
        return len(self.windows)

    def layer(self, index: int, config: JsonObject, norm: NormForm) -> AttentionSpec:
        """Return the attention of a layer. Raises `ModelError` for a rotation that cannot be."""
        window, rope = self.windows[index], self.ropes[index]
        source = self.sources[index] if self.sources else None
        heads = self.full_heads if window is None and self.full_heads else self.heads
        keys_are_values = window is None and self.full_keys_are_values
        dim, method = heads.head_dim, linear_method(config)
        hidden = config.integer("hidden_size", 1, 2**20)
        num_query, num_key = heads.num_heads * dim, heads.num_kv_heads * dim
        prefix = f"model.layers.{index}.self_attn"
        rotary_dim = dim if rope is None else int(dim * rope.partial_rotary_factor)
        if rotary_dim % 2 or not rotary_dim:
            wanted = f"a factor that rotates an even number of a head's {dim} elements"
            raise config.error("partial_rotary_factor", wanted)
        pairs = NeighbourPairs(dim, rotary_dim) if self.turns_neighbours and rope else None
        parts = [
            self._queries(f"{prefix}.q_proj", num_query, pairs),
            Projection(f"{prefix}.k_proj", num_key, pairs),
            Projection(f"{prefix}.v_proj", num_key),
        ]
        if self.is_fused:
            parts = [Projection(f"{prefix}.qkv_proj", num_query + 2 * num_key)]
        elif source is not None or keys_are_values:
            del parts[2 if source is None else 1 :]
        q_norm = k_norm = None
        if self.qk_norm is not None:
            sizes = (num_query, num_key) if self.qk_norm.of_all_heads else (dim, dim)
            q_norm = norm.named(f"{prefix}.{self.qk_norm.query}", sizes[0])
            if source is None:
                k_norm = norm.named(f"{prefix}.{self.qk_norm.key}", sizes[1])
        out = (Projection(f"{prefix}.{self.out_name}", hidden),)
        return AttentionSpec(
            heads.num_heads,
            heads.num_kv_heads,
            dim,
            scale=dim**-0.5 if self.scale is None else self.scale,
            window=window,
            rope=rope,
            qkv=LinearSpec(tuple(parts), hidden, self.qkv_bias, method),
            out=LinearSpec(out, num_query, self.out_bias, method),
            q_norm=q_norm,
            k_norm=k_norm,
            norms_after_rotation=self.qk_norm is not None and self.qk_norm.after_rotation,
            softcap=self.softcap,
            temper=self.temper,
            sinks=SinksSpec(f"{prefix}.sinks", heads.num_heads) if self.has_sinks else None,
            value_norm_eps=norm.eps if self.normalizes_values else None,
            keys_are_values=keys_are_values,
            source=source,
            has_gate=self.has_gate,
        )

    def _queries(self, name: str, num_query: int, pairs: NeighbourPairs | None) -> Projection:
        if not self.has_gate:
            return Projection(name, num_query, pairs)
        dim = self.heads.head_dim
        return Projection(name, 2 * num_query, InterleavedParts((dim, dim), order=(1, 0)))
