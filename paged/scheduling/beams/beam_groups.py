"""BeamGroups: the groups of all requests with beams that are in the run, and their blocks."""

from collections.abc import Sequence as Seq

from pagedrun.paged.scheduling.beams.beam_group import BeamGroup
from pagedrun.paged.scheduling.beams.beam_search import NextBeam
from pagedrun.paged.scheduling.books import Books
from pagedrun.paged.scheduling.sequence import Sequence


class BeamGroups:
    """Keeps the books right when beams branch, die, or give way together.

    sequences: the scheduler's, by place; those made and dropped here come and go in it.
    """

    def __init__(self, books: Books, sequences: dict[int, Sequence]) -> None:
        self._books = books
        self._sequences = sequences
        self._groups: dict[int, BeamGroup] = {}  # by row

    @property
    def num_free_seats(self) -> int:
        """Seats that groups in the batch keep for beams to come."""
        return sum(each.num_free_seats for each in self._groups.values() if each.is_running)

    def begin(self, sequence: Sequence) -> None:
        """Take note of a sequence that computes a prompt for beams."""
        has_windows = any(group.window is not None for group in self._books.further)
        is_lost = has_windows or self._books.states.has_slots
        self._groups[sequence.request.index] = BeamGroup(sequence, past_is_lost=is_lost)

    def of(self, sequence: Sequence) -> BeamGroup | None:
        """Return the group that a sequence is of, None for one that is no beam."""
        return self._groups.get(sequence.request.index)

    def of_row(self, row: int) -> BeamGroup:
        """Return the group of a request, by its index."""
        return self._groups[row]

    def end(self, row: int) -> None:
        """Forget the group of a request, if it has one."""
        self._groups.pop(row, None)

    def unfold(self, group: BeamGroup) -> list[Sequence]:
        """Let folded beams go on that can, with the blocks that they share with the first; return
        them."""
        beams = group.unfold(self._books.pool.block_size)
        for beam in beams:
            assert not any(each.has_gap_before(beam) for each in self._books.further), "a gap"
            is_there = beam.num_computed_tokens == group.members[0].num_computed_tokens
            assert is_there or not self._books.states.has_slots, "the state is another"
            self._adopt(beam)
        return beams

    def first_parting(self, sequence: Sequence) -> int:
        """Return the first token that a sequence which gives way, or a beam that is folded into it,
        goes on from."""
        group = self.of(sequence)
        computed = sequence.num_computed_tokens
        return computed if group is None else min(computed, group.first_parting)

    def fold(self, group: BeamGroup) -> None:
        """Take the blocks of all beams but the first, which is about to give way for them all."""
        for beam in group.fold():
            self._drop(beam)

    def branch(self, group: BeamGroup, beams: Seq[NextBeam]) -> None:
        """Let the beams of the next step go on from those of the last one; others die.

        A beam's newest token, which was unknown, is the one that `beams` says.
        """
        num_free = self._books.pool.num_free
        forked, dead = group.branch([each.parent for each in beams])
        dead_by_sample = {each.sample_index: each for each in dead}
        for beam in forked:
            in_place_of = dead_by_sample.pop(beam.sample_index, None)
            if in_place_of is None:
                self._adopt(beam)
            else:
                self._replace(in_place_of, beam)
        for beam in dead_by_sample.values():
            self._drop(beam)
        if forked or dead:
            freed = self._books.pool.num_free - num_free
            self._books.counts.forks += len(forked)
            self._books.residency.branch(group.row, len(forked), len(dead), freed)
        for beam, chosen in zip(group.members, beams, strict=True):
            beam.set_newest_token(chosen.token_id)

    def _adopt(self, beam: Sequence) -> None:
        self._sequences[beam.place] = beam
        self._books.share(beam)
        self._books.residency.begin(beam, beam.num_blocks)

    def _drop(self, beam: Sequence) -> None:
        self._books.release(beam)
        self._books.residency.end(beam)
        self._forget(beam)

    def _replace(self, dead: Sequence, beam: Sequence) -> None:
        """Adopt a beam and drop another: only the blocks in which they differ change hands."""
        for group in reversed(self._books.groups):
            num_common = group.tables.num_common(beam.place, dead.place)
            group.pool.release(group.tables.held(dead.place, num_common))
            group.pool.share(group.tables.held(beam.place, num_common))
        self._books.states.share(beam.place)
        self._books.states.release(dead.place)
        self._books.residency.pass_on(dead, beam, num_common)
        self._forget(dead)
        self._sequences[beam.place] = beam

    def _forget(self, beam: Sequence) -> None:
        self._books.table.remove(beam.place)
        del self._sequences[beam.place]
