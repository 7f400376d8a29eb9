"""AttentionSpec: self-attention, as a value."""

from dataclasses import dataclass

from pagedrun.paged.models.network.kv_groups import AttentionHeads
from pagedrun.paged.models.network.linear_spec import LinearSpec
from pagedrun.paged.models.network.norm_spec import NormSpec
from pagedrun.paged.models.network.part import Part
from pagedrun.paged.models.network.query_temper import QueryTemper
from pagedrun.paged.models.network.sinks_spec import SinksSpec
from pagedrun.paged.models.rope_config import RopeConfig


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """`num_heads` queries a token, of `head_dim`, that share `num_kv_heads` keys and values.

    `qkv` gives queries, keys and values side by side, `out` maps the heads' results back. If
    `has_gate`, a gate for each number of the results comes before the queries, and multiplies it by
    its sigmoid.
    `scale` multiplies scores, `softcap` then bends them into -softcap .. softcap. `window` is None
    for full attention; a window w lets the query at position p see the keys at positions
    p - w < k <= p, itself included. `rope` None: heads are not rotated.

    `q_norm` and `k_norm` are of head_dim, and normalise each head before its rotation or
    `norms_after_rotation`; or of all heads together, before. `temper` multiplies rotated queries.
    `sinks` are one more score for each head.

    Values pass an RMS norm of each head without a weight if there is a `value_norm_eps`. With
    `keys_are_values` they are what `qkv` gives for keys, before their norm and rotation. `source`
    is the layer whose keys and values are read; None: the layer has its own, else `qkv` gives
    queries alone.
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
    temper: QueryTemper | None = None
    sinks: SinksSpec | None = None
    value_norm_eps: float | None = None
    keys_are_values: bool = False
    source: int | None = None
    has_gate: bool = False

    @property
    def heads(self) -> AttentionHeads:
        """What decides with which layers it shares block tables."""
        return AttentionHeads(self.num_heads, self.num_kv_heads, self.head_dim, self.window)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        others = (self.q_norm, self.k_norm, self.sinks)
        return self.qkv, self.out, *(each for each in others if each is not None)

    @property
    def normalizes_all_heads(self) -> bool:
        """Whether the norms take all heads of a token together."""
        return self.q_norm is not None and self.q_norm.size != self.head_dim

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point: q, k, v, rotated q, and the result."""
        projected = self.num_heads + 2 * self.num_kv_heads
        normalized = 2 * projected if self.normalizes_all_heads else 0
        gate = 2 * self.num_heads if self.has_gate else 0  # and what it opens
        return (2 * self.num_heads + projected + normalized + gate) * self.head_dim
