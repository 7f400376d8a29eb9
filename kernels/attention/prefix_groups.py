"""Who reads which shared partitions: the work items of attention over shared prefixes."""

from dataclasses import dataclass

from torch import Tensor

from pagedrun.kernels.attention.partition import PARTITION_TOKENS


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
    def num_tokens_saved(self) -> int:
        """Tokens that would be read again if every row read alone."""
        again = self.row_starts.diff() - 1
        partitions = self.last_partitions - self.first_partitions
        return int((again * partitions).sum()) * PARTITION_TOKENS


class PrefixResult:
    """What a backend's attention over shared prefixes leaves for its own decode attention."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PrefixState(PrefixResult):
    """Attention of query rows over their first partitions, to be continued.

    For each row and head the softmax so far: `peaks` the largest score (scaled, and bent where
    there is a cap) times log2(e), `masses` the sum of `2^(score - peak)`, `totals` the sum of
    values with these weights. Rows without a prefix have peak -inf, mass 0 and total 0.

    peaks, masses: [num_rows, num_heads] float32. totals: [num_rows, num_heads, head_dim] float32.
    num_partitions: [num_rows] int32, the partitions that are in it.
    """

    peaks: Tensor
    masses: Tensor
    totals: Tensor
    num_partitions: Tensor
