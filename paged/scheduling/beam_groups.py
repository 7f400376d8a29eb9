"""BeamGroups: sequences that are the beams of one request, and the accounting of their blocks."""

from bisect import bisect
from collections.abc import Sequence as Seq

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.scheduling.beam_search import NextBeam
from pagedrun.paged.scheduling.scheduler_state import SchedulerState
from pagedrun.paged.scheduling.sequence import Sequence


class BeamGroup:
    """Beams of one request, always sampled in the same step.

    `members` are the beams, best first; one while the prompt is computed. When the group is
    preempted, the first one waits for all, and `folded` are the generated tokens of the others by
    their rank, 0 for the best: these resume from their common prefix with the first, once it has
    computed all but its last token. With windows or recurrent states (`past_is_lost`) the first one
    computes its tokens again, and each other resumes as soon as the first has passed their common
    prefix, which may be before a better one.
    `is_running`: true if the group has batch slots, false if it waits.
    """

    def __init__(self, first: Sequence, *, past_is_lost: bool) -> None:
        self.width = first.request.params.beam_width
        self._past_is_lost = past_is_lost
        self.members = [first]
        self.folded: dict[int, list[int]] = {}
        self._ranks = [0]  # of the members, in order
        self.is_running = False

    @property
    def row(self) -> int:
        """The index of the request."""
        return self.members[0].request.index

    @property
    def num_free_slots(self) -> int:
        """Batch slots reserved for future beams."""
        return self.width - len(self.members)

    @property
    def first_divergence(self) -> int:
        """Position of the first token that the first beam and all folded ones do not share."""
        first = self.members[0]
        return min([first.num_tokens, *map(self._num_common, self.folded.values())])

    def has_room(self, pool: BlockPool) -> bool:
        """Return whether enough blocks are free for all beams of a preempted group."""
        return not self.folded or self.num_blocks_needed(pool.block_size) <= pool.num_free

    def num_blocks_needed(self, block_size: int) -> int:
        """Return the maximum number of blocks of all beams."""
        first = self.members[0]
        total = -(-first.num_tokens // block_size)
        for tokens in self.folded.values():
            end = first.num_prompt_tokens + len(tokens)
            total += -(-end // block_size) - self._num_common(tokens) // block_size
        return total

    def ends(self, budget: int, *, is_first: bool) -> list[int]:
        """Return the end of the chunk of each member in a step with room for `budget` tokens.

        The last tokens are computed, and sampled from, only together. `is_first`: the step is
        empty; beams with one token left each are then computed, whatever the budget.
        """
        first = self.members[0]
        if len(self.members) == 1 and not self.folded:
            return [min(first.num_tokens, first.num_computed_tokens + budget)]
        left = [each.num_tokens - each.num_computed_tokens for each in self.members]
        is_whole = sum(left) <= budget or (is_first and max(left) == 1)
        if is_whole and not self.folded:
            return [each.num_tokens for each in self.members]
        if self._past_is_lost and self.folded:
            partings = (self._num_common(tokens) for tokens in self.folded.values())
            computed = first.num_computed_tokens
            ahead = (each - computed for each in partings if each > computed)
            left[0] = min([left[0], *(num_tokens + 1 for num_tokens in ahead)])
        ends = []
        for each, num_left in zip(self.members, left, strict=True):
            count = min(num_left - 1, budget)
            ends.append(each.num_computed_tokens + count)
            budget -= count
        return ends

    def fold(self) -> list[Sequence]:
        """Reduce the group to its first member; return the others, whose blocks can be freed."""
        others = self.members[1:]
        self.members[0].num_beams = len(self.members) + len(self.folded)
        for rank, each in zip(self._ranks[1:], others, strict=True):
            self.folded[rank] = each.output_token_ids
        self.members, self._ranks = self.members[:1], [0]
        self.is_running = False
        return others

    def unfold(self, block_size: int) -> list[Sequence]:
        """Return the folded beams that can resume, as members again.

        They hold the blocks that they share with the first; the caller counts the references.
        """
        first, unfolded = self.members[0], []
        is_ready = first.num_computed_tokens >= first.num_tokens - 1
        for rank, tokens in list(self.folded.items()):
            num_common = self._num_common(tokens)
            has_passed = self._past_is_lost and num_common <= first.num_computed_tokens
            if not is_ready and not has_passed:
                continue
            beam = first.branch(self._free_index())
            beam.output_token_ids = tokens
            beam.go_back_to(num_common, -(-num_common // block_size))
            beam.num_tokens_ever_computed = beam.num_tokens - 1
            position = bisect(self._ranks, rank)
            self.members.insert(position, beam)
            self._ranks.insert(position, rank)
            unfolded.append(beam)
            del self.folded[rank]
        if unfolded and not self.folded:
            self._count_each_once()
        return unfolded

    def branch(self, parents: Seq[int]) -> tuple[list[Sequence], list[Sequence]]:
        """Replace the members by their children; return the forked ones and those without children.

        parents: index of the parent of each new member. The first child of a member is itself. The
        caller counts the references of the blocks.
        """
        old, left = self.members, set(range(len(self.members))) - set(parents)
        dead = [old[index] for index in sorted(left)]
        self.members = [old[index] for index in sorted(set(parents))]
        seen: set[int] = set()
        forked, ordered = [], []
        for index in parents:
            beam = old[index]
            if index in seen:
                beam = beam.branch(self._free_index())
                forked.append(beam)
                self.members.append(beam)
            seen.add(index)
            ordered.append(beam)
        self.members, self._ranks = ordered, [*range(len(ordered))]
        self._count_each_once()
        return forked, dead

    def _count_each_once(self) -> None:
        for each in self.members:
            each.num_beams = 1

    def _free_index(self) -> int:
        taken = {each.sample_index for each in self.members}
        return min(set(range(self.width)) - taken)

    def _num_common(self, tokens: list[int]) -> int:
        """Return the length of the common prefix of a folded beam and the first, prompt included;
        at most all but the last token, whose keys and values are not stored."""
        first = self.members[0]
        own = first.output_token_ids
        limit = min(len(own), len(tokens)) - 1
        count = 0
        while count < limit and own[count] == tokens[count]:
            count += 1
        return first.num_prompt_tokens + count


class BeamGroups:
    """Groups of beams by request, and the accounting of blocks when beams fork, end or fold.

    sequences: the scheduler's, by row index; beams are added and removed here.
    """

    def __init__(self, state: SchedulerState, sequences: dict[int, Sequence]) -> None:
        self._state = state
        self._sequences = sequences
        self._groups: dict[int, BeamGroup] = {}  # by row

    @property
    def num_free_slots(self) -> int:
        """Batch slots that running groups reserve for future beams."""
        return sum(each.num_free_slots for each in self._groups.values() if each.is_running)

    def begin(self, sequence: Sequence) -> None:
        """Add the group of a sequence that computes a prompt for beams."""
        has_windows = any(group.window is not None for group in self._state.further)
        is_lost = has_windows or self._state.states.has_slots
        self._groups[sequence.request.index] = BeamGroup(sequence, past_is_lost=is_lost)

    def of(self, sequence: Sequence) -> BeamGroup | None:
        """Return the group of a sequence, None if it is no beam."""
        return self._groups.get(sequence.request.index)

    def of_row(self, row: int) -> BeamGroup:
        """Return the group of a request, by its index."""
        return self._groups[row]

    def end(self, row: int) -> None:
        """Remove the group of a request, if it has one."""
        self._groups.pop(row, None)

    def unfold(self, group: BeamGroup) -> None:
        """Resume folded beams that can continue, with the blocks shared with the first."""
        beams = group.unfold(self._state.pool.block_size)
        for beam in beams:
            assert not any(each.has_gap_before(beam) for each in self._state.further), "a gap"
            is_there = beam.num_computed_tokens == group.members[0].num_computed_tokens
            assert is_there or not self._state.states.has_slots, "the state is another"
            self._adopt(beam)

    def first_divergence(self, sequence: Sequence) -> int:
        """Return the first token from which a preempted sequence, or a beam folded into it,
        continues."""
        group = self.of(sequence)
        computed = sequence.num_computed_tokens
        return computed if group is None else min(computed, group.first_divergence)

    def fold(self, group: BeamGroup) -> None:
        """Free the blocks of all beams but the first, which is about to be preempted."""
        for beam in group.fold():
            self._drop(beam)

    def branch(self, group: BeamGroup, beams: Seq[NextBeam]) -> None:
        """Replace the beams of the last step by those of the next one, with their newest tokens."""
        num_free = self._state.pool.num_free
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
            freed = self._state.pool.num_free - num_free
            self._state.counts.forks += len(forked)
            self._state.residency.branch(group.row, len(forked), len(dead), freed)
        for beam, chosen in zip(group.members, beams, strict=True):
            beam.set_newest_token(chosen.token_id)

    def _adopt(self, beam: Sequence) -> None:
        self._sequences[beam.row_index] = beam
        self._state.share(beam)
        self._state.residency.begin(beam, beam.num_blocks)

    def _drop(self, beam: Sequence) -> None:
        self._state.release(beam)
        self._state.residency.end(beam)
        self._forget(beam)

    def _replace(self, dead: Sequence, beam: Sequence) -> None:
        """Adopt a beam and drop another; only blocks that differ are shared and released."""
        for group in reversed(self._state.groups):
            num_common = group.tables.num_common(beam.row_index, dead.row_index)
            group.pool.release(group.tables.held(dead.row_index, num_common))
            group.pool.share(group.tables.held(beam.row_index, num_common))
        self._state.states.share(beam.row_index)
        self._state.states.release(dead.row_index)
        self._state.residency.pass_on(dead, beam, num_common)
        self._forget(dead)
        self._sequences[beam.row_index] = beam

    def _forget(self, beam: Sequence) -> None:
        self._state.table.remove(beam.row_index)
        del self._sequences[beam.row_index]
