"""Recurrent layers that keep in each slot what real ones would depend on.

A state is (number of tokens, a digest of them). Each chunk checks that the slot it reads has the
state of its own tokens, before any chunk of the step has written, and that no other chunk writes
there: chunks of a step are computed in no order. A draft goes on from the chunk before it.
"""

from pagedrun.paged.cache.block_pool import TransferKind
from pagedrun.paged.scheduling.sequence_table import NO_STATE
from tests.support.fake_model import START, RecordingPool, digests
from tests.support.step import Step

State = tuple[int, int]


class FakeStates:
    """The slots of a pool, and those on the host, as dictionaries."""

    def __init__(self, pool: RecordingPool, group: int) -> None:
        self.pool = pool
        self.group = group
        self.slots: dict[int, State | None] = {}
        self.host: dict[int, State | None] = {}
        self.moves: dict[TransferKind, int] = dict.fromkeys(TransferKind, 0)

    def run(self, step: Step) -> None:
        """Move slots, then compute every chunk."""
        self._transfer(step)
        reads, writes = step.input.read_slots.tolist(), step.input.write_slots.tolist()
        assert len(writes) == len(set(writes)) == len(step.chunks), "two chunks write one slot"
        written: dict[int, State] = {}
        for chunk, read, write in zip(step.chunks, reads, writes, strict=True):
            known = [START, *digests(chunk.tokens)]
            before = written if chunk.drafts else self.slots
            found = (0, START) if read == NO_STATE else before[read]
            assert found == (chunk.start, known[chunk.start]), (
                f"the chunk {chunk.start}..{chunk.end} reads {found} in slot {read}"
            )
            is_own = read == write or bool(chunk.drafts)
            assert is_own or read not in writes, "another chunk writes what this one reads"
            written[write] = (chunk.end, known[chunk.end])
        self.slots |= written

    def _transfer(self, step: Step) -> None:
        # What a slot held in its last life must not pass for its new content.
        saved = dict(self.slots)
        for slot in self.pool.taken:
            self.slots[slot] = None
        self.pool.taken.clear()
        for each in step.input.transfers:
            if each.group != self.group:
                continue
            self.moves[each.kind] += 1
            if each.kind is TransferKind.SWAP_OUT:
                self.host[each.target] = saved[each.source]
            else:
                assert each.kind is TransferKind.SWAP_IN, "a state was copied"
                self.slots[each.target] = self.host[each.source]
