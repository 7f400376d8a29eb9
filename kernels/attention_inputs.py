"""Inputs of attention: queries of a step, shared prefixes, and the KV cache of a layer.

The same for all backends; tensors that a backend derives from them are its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from pagedrun.kernels.partition import PARTITION_TOKENS

Place = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class PrefillInputs:
    """Prompt tokens: chunks of consecutive queries.

    chunk_starts: [num_chunks + 1] int32, offsets into the step's tokens. table_rows: [num_chunks]
    int32, each chunk's row in the block tables. first_positions: [num_chunks] int32. Without
    `is_causal` a query sees the keys behind it as well, up to the last of its chunk.
    """

    chunk_starts: Tensor
    table_rows: Tensor
    first_positions: Tensor
    is_causal: bool = True

    def placed(self, place: Place) -> "PrefillInputs":
        """Return the same on a device."""
        return replace(
            self,
            chunk_starts=place(self.chunk_starts),
            table_rows=place(self.table_rows),
            first_positions=place(self.first_positions),
        )


@dataclass(frozen=True, slots=True)
class PrefixGroups:
    """Groups of query rows that read the same partitions out of the same blocks.

    Group g is rows `rows[row_starts[g] : row_starts[g + 1]]` reading partitions
    `first_partitions[g] .. last_partitions[g] - 1` (of `PARTITION_TOKENS` each, counted from token
    0) through row `table_rows[g]` of the block tables. A row is in at most one group for each
    partition; together a row's groups cover its partitions from 0 to `num_partitions[row]`, and
    groups are in ascending order of `first_partitions`. Rows that are together in a group were
    together in all groups before it, and its table names the blocks of those as well. Several
    prefixes, nested ones and rows without any are all just groups.

    rows: [num_entries] int32. row_starts: [num_groups + 1] int32. table_rows, first_partitions,
    last_partitions: [num_groups] int32. num_partitions: [num_rows] int32.
    """

    rows: Tensor
    row_starts: Tensor
    table_rows: Tensor
    first_partitions: Tensor
    last_partitions: Tensor
    num_partitions: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, in order."""
        entries = self.rows, self.row_starts, self.table_rows
        return (*entries, self.first_partitions, self.last_partitions, self.num_partitions)

    @property
    def num_tokens_saved(self) -> int:
        """Tokens that would be read again if every row read alone."""
        again = self.row_starts.diff() - 1
        partitions = self.last_partitions - self.first_partitions
        return int((again * partitions).sum()) * PARTITION_TOKENS


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Generated tokens, one query each.

    table_rows: [num_rows] int32. context_lens: [num_rows] int32, the token itself included, 0 for
    an empty row. groups: which rows read which shared partitions together, if any do.
    """

    table_rows: Tensor
    context_lens: Tensor
    groups: PrefixGroups | None = None

    def placed(self, place: Place) -> "DecodeInputs":
        """Return the same on a device; groups stay on the host, where a backend prepares them."""
        return DecodeInputs(place(self.table_rows), place(self.context_lens), self.groups)

    def tokens_read(self, window: int | None) -> tuple[int, int]:
        """Return the tokens that attention reads in a layer; see `AttentionInputs.tokens_read`."""
        lens = self.context_lens if window is None else self.context_lens.clamp(max=window)
        total, saved = int(lens.sum()), 0
        if window is None and self.groups is not None:
            saved = self.groups.num_tokens_saved
        return total - saved, total


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Inputs of attention in one step besides queries and cache, for all layers.

    The step's tokens are all prefill tokens, then all decode tokens. block_tables: [num_tables,
    max_blocks] int32, block ids in order of position. A backend prepares this for itself.
    """

    block_tables: Tensor
    num_prefill_tokens: int = 0
    prefill: PrefillInputs | None = None
    decode: DecodeInputs | None = None

    def placed(self, place: Place) -> "AttentionInputs":
        """Return the same with its tensors on a device, as `place` puts them there."""
        return replace(
            self,
            block_tables=place(self.block_tables),
            prefill=self.prefill and self.prefill.placed(place),
            decode=self.decode and self.decode.placed(place),
        )

    def tokens_read(self, window: int | None) -> tuple[int, int]:
        """Return the tokens whose keys and values attention reads in a layer with this window.

        First as it is done, then as if no two rows read together. A chunk reads its context once.
        """
        total = saved = 0
        if self.prefill is not None:
            lengths = self.prefill.chunk_starts.diff()
            seen = self.prefill.first_positions + lengths
            if window is not None:
                seen = seen.minimum(lengths + window - 1)
            total += int(seen.sum())
        if self.decode is not None:
            read, alone = self.decode.tokens_read(window)
            total, saved = total + alone, alone - read
        return total - saved, total


class PrefixResult:
    """Result of attention over shared prefixes, continued by decode attention."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PrefixState(PrefixResult):
    """Attention of query rows over their first partitions, to be continued.

    For each row and head the softmax so far: `max_scores` the largest score (scaled, and capped
    where there is a cap) times log2(e), `sum_exps` the sum of `2^(score - max_score)`, `accs` the
    sum of values with these weights. Rows without a prefix have -inf, 0 and 0.

    max_scores, sum_exps: [num_rows, num_heads] float32. accs: [num_rows, num_heads, head_dim]
    float32.
    num_partitions: [num_rows] int32, the partitions that are in it.
    """

    max_scores: Tensor
    sum_exps: Tensor
    accs: Tensor
    num_partitions: Tensor


@dataclass(frozen=True, slots=True)
class KVScales:
    """One scale for each head of each token of a KV memory in int8 or float8_e4m3fn.

    The key at a slot is `key_cache[slot] * keys[slot]`, the value `value_cache[slot] *
    values[slot]`. Like the cache itself, the scale of a slot that is not written is undefined, and
    may be NaN.

    keys, values: [num_blocks, num_kv_heads, block_size] float32, laid out as the caches are.
    """

    keys: Tensor
    values: Tensor


class KVLayer(NamedTuple):
    """One layer's memory: keys and values [num_blocks, num_kv_heads, block_size, head_dim].

    Slot `block_id * block_size + offset` is one token's place in it. `scales` belong to a cache in
    int8 or float8_e4m3fn, None to others.
    """

    keys: Tensor
    values: Tensor
    scales: KVScales | None = None

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys, and of values."""
        return self.keys.shape[1]

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.keys.shape[2]

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.keys.shape[3]

    @property
    def without_heads(self) -> "KVLayer":
        """The same memory with none of its heads: what takes queries alone writes nothing to it."""
        scales = self.scales
        if scales is not None:
            scales = KVScales(scales.keys[:, :0], scales.values[:, :0])
        return KVLayer(self.keys[:, :0], self.values[:, :0], scales)

    def num_query_heads(self, qkv: Tensor) -> int:
        """Return how many heads are left for queries in rows of all query, key and value heads."""
        return qkv.shape[1] // self.head_dim - 2 * self.num_kv_heads


@dataclass(frozen=True, slots=True, eq=False)
class RelativeTerms:
    """Addends of the products `q · k` that depend on the distance of query and key.

    For chunks that begin at position 0, see both sides and have all their keys in the call. The
    product of the query of token i and the key of token j of a chunk becomes `q · k +
    by_query[i, head, c] + by_key[j, head, c]`, with `c = columns[middle + i - j]` and middle the
    index of the middle of `columns`. One of the two tables may be None.

    by_query: [num_tokens, num_heads, num_columns] in the dtype of the queries; one table for all
    tokens may be expanded. by_key: the same, of the tokens as keys, for each query head. columns:
    [2 * num_distances - 1] int32, for distances below num_distances, which no chunk exceeds.
    """

    columns: Tensor
    by_query: Tensor | None = None
    by_key: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Softmax:
    """Scale, soft cap and sinks of attention scores.

    scale: above 0; a score is `q · k * scale`, with the `relative` terms added to `q · k` where
    there are some, in attention of chunks alone. softcap: limits scores to -softcap .. softcap, as
    `softcap * tanh(score / softcap)` (Gemma 2, arXiv:2408.00118, section 2). sinks: [num_heads]
    float32 on the queries' device, one more score for each head, of a key that all queries see and
    that has no value, so that weights add up to less than 1. A row's sinks are added after its last
    partition, never to a shared prefix.
    """

    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    relative: RelativeTerms | None = None


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms of each head's query and key, before or after rotation.

    query, key: [head_dim], the weights. eps is added to the mean of squares. `after_rotation`: the
    weights multiply what has been rotated; the root mean square is the same before and after.
    """

    query: Tensor
    key: Tensor
    eps: float
    after_rotation: bool = False
