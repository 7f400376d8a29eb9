"""Attention of one step on a GPU: its groups are work items in the device's memory."""

from pagedrun.kernels.attention.attention import AttentionShape
from pagedrun.kernels.attention.attention_inputs import AttentionInputs
from pagedrun.kernels.attention.prefix_groups import PrefixGroups
from pagedrun.kernels.attention.prepared_attention import AttentionOps, PreparedAttention
from pagedrun.kernels.gpu.attention.prefix_attention import prefix_work
from pagedrun.kernels.gpu.attention.prefix_partials import PrefixPartials
from pagedrun.kernels.gpu.attention.prefix_room import prefix_room
from pagedrun.kernels.gpu.attention.prefix_work import PrefixWork


class GpuAttention(PreparedAttention[PrefixWork, PrefixPartials]):
    """The work items are made once for all layers."""

    __slots__ = ()

    @classmethod
    def of(
        cls,
        inputs: AttentionInputs,
        ops: AttentionOps[PrefixWork, PrefixPartials],
        shape: AttentionShape,
        room: int,
    ) -> "GpuAttention":
        """Return attention over the inputs, with room for groups to come; see `Backend.prepare`."""
        rows, device = inputs.decode, inputs.block_tables.device
        work = None
        if rows is not None and room:
            work = prefix_room(len(rows.context_lens), room, shape, device)
            if rows.groups is not None:
                work.write(rows.groups)
        elif rows is not None and rows.groups is not None:
            work = prefix_work(rows.groups, shape, device)
        return cls(ops, PrefixPartials, inputs, work)

    def regroup(self, groups: PrefixGroups) -> None:
        """Replace the work items in stream order, in the memory that they have."""
        assert self.work is not None, "prepared without room"
        self.work.write(groups)
