"""WindowEntry: the blocks with which a sequence comes into a group that has a window."""

from collections.abc import Sequence as Seq
from typing import NamedTuple

from pagedrun.paged.cache.block_transfer import BlockTransfer, TransferKind
from pagedrun.paged.scheduling.groups.kv_group import KVGroup
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.step_builder import StepBuilder


class WindowEntry(NamedTuple):
    """A table that begins at index `first`: blocks found, then new ones.

    Of the new ones the first are for what the sequence has on the host.
    """

    group: KVGroup
    first: int
    hits: list[int]
    num_new: int

    @classmethod
    def of(cls, group: KVGroup, sequence: Sequence, num_hits: int, budget: int) -> "WindowEntry":
        """Return what a sequence needs for its next chunk, of at most `budget` tokens.

        num_hits: blocks of its prompt that it shares in all groups; a sequence that has blocks on
        the host shares none here.
        """
        size = group.pool.block_size
        if sequence.host_blocks:
            start, num_hits = sequence.num_computed_tokens, 0
        else:
            start = first_computed(sequence, num_hits * size)
        first = group.first_read(start)
        keys = sequence.block_keys[first:num_hits]
        hits = [block for key in keys for block in group.pool.match([key])]
        num_stored = first + len(hits) + len(group.on_host.get(sequence.place, ()))
        end = group.pool.num_blocks_for(min(sequence.num_tokens, start + budget))
        return cls(group, first, hits, max(end, num_stored) - first - len(hits))

    @property
    def is_there(self) -> bool:
        """Whether enough blocks are free."""
        pool = self.group.pool
        return self.num_new + pool.num_free_among(self.hits) <= pool.num_free

    def take(self, sequence: Sequence, step: StepBuilder) -> None:
        """Give the sequence its blocks, with what it has on the host."""
        group, place = self.group, sequence.place
        group.pool.share(self.hits)
        new = group.pool.allocate(self.num_new)
        assert new is not None, "fewer blocks are free than were counted"
        group.tables.set(place, self.hits + new, self.first)
        step.transfers += [
            BlockTransfer(TransferKind.SWAP_IN, source, target, group.index)
            for source, target in zip(group.on_host.get(place, ()), new, strict=False)
        ]


def first_computed(sequence: Sequence, num_stored: int) -> int:
    """Return the first token to compute of a sequence of which so many are stored.

    Only a computed token has logits: at least one is, and all whose next one is to be scored.
    """
    return min(num_stored, sequence.num_tokens - 1, sequence.score_from)


def num_usable(groups: Seq[KVGroup], sequence: Sequence, num_hits: int) -> int:
    """Return how many of the first blocks of a prompt a sequence can go on behind: the most, up to
    `num_hits`, of which every group has what its window reaches back to."""
    if not groups:
        return num_hits
    size = groups[0].pool.block_size
    behind = [(group, _num_before(group, sequence, num_hits)) for group in groups]
    for count in range(num_hits, 0, -1):
        start = first_computed(sequence, count * size)
        if all(count - group.first_read(start) <= num[count - 1] for group, num in behind):
            return count
    return 0


def _num_before(group: KVGroup, sequence: Sequence, num_hits: int) -> list[int]:
    """Return for each of the first blocks of a prompt how many, it included, a group has there
    without a gap."""
    counts, num_last = [], 0
    for key in sequence.block_keys[:num_hits]:
        num_last = num_last + 1 if group.pool.match([key]) else 0
        counts.append(num_last)
    return counts
