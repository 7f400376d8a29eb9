"""What prefix attention leaves for decode attention on a GPU."""

from dataclasses import dataclass

from torch import Tensor

from pagedrun.kernels.attention.prefix_groups import PrefixResult

# Tokens of a prefix, counted from token 0, that give one partial state. Each row's state of a unit
# is written and read once: head_dim * 4 bytes for each query head and unit, where a unit's keys
# and values are 2 * head_dim * 1024 elements for each kv head. Shorter units would write more, in
# longer ones more would be read again where prefixes branch.
UNIT_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class PrefixPartials(PrefixResult):
    """States of query rows over the units of their prefixes, for `decode_attention` to merge.

    Row r's states, each of one unit or merged of several, lie from slot `first_slots[r]` on, in
    ascending order. What a state is: see `PrefixState`, the same after merging. Other slots are
    undefined.

    peaks, masses: [num_slots, num_heads] float32. totals: [num_slots, num_heads, head_dim] float32.
    first_slots, num_states, num_partitions: [num_rows] int32, partitions being those of
    `PARTITION_TOKENS`.
    """

    peaks: Tensor
    masses: Tensor
    totals: Tensor
    first_slots: Tensor
    num_states: Tensor
    num_partitions: Tensor
