"""AttentionSpec: self-attention, as a value."""

from dataclasses import dataclass

from pagedrun.paged.models.network.linear_spec import LinearSpec
from pagedrun.paged.models.network.norm_spec import NormSpec
from pagedrun.paged.models.network.part import Part
from pagedrun.paged.models.rope_config import RopeConfig


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """`num_heads` queries a token, of `head_dim`, that share `num_kv_heads` keys and values.

    `qkv` gives queries, keys and values side by side, `out` maps the heads' results back.
    `scale` multiplies scores. `window` is None for full attention; a window w lets the query at
    position p see the keys at positions p - w < k <= p, itself included. `q_norm` and `k_norm`
    normalise each head before it is rotated as `rope` says; None where there are none.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    rope: RopeConfig
    qkv: LinearSpec
    out: LinearSpec
    q_norm: NormSpec | None = None
    k_norm: NormSpec | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        norms = (norm for norm in (self.q_norm, self.k_norm) if norm is not None)
        return self.qkv, self.out, *norms

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point: q, k, v, rotated q, and the result."""
        return (3 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
