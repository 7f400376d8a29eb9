"""Scheduler: chooses the sequences of the next step, and preempts some when memory is short.

planned → waiting → running → ending → finished, and back to waiting by preemption. Sequences
run in the order of the plan, and are created only when there is room; the youngest is preempted
first. The oldest can therefore always continue, and since no planned sequence exceeds the empty
pool, every run ends.

The order of the plan is a walk of a tree: a later row finds in the pool what the next row has
in common with the last admitted one. The pool keeps exactly that (`BlockPool.pin_path`), and
the blocks of waiting sequences (`BlockPool.pin`).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.scheduling.admission import Admission
from pagedrun.paged.scheduling.admission_policy import OutputLengthPredictor, Refill, Stagger
from pagedrun.paged.scheduling.beam_groups import BeamGroup, BeamGroups
from pagedrun.paged.scheduling.beam_search import NextBeam
from pagedrun.paged.scheduling.chunk_placer import ChunkPlacer
from pagedrun.paged.scheduling.kv_groups import GroupPool, KVGroup
from pagedrun.paged.scheduling.preemption import Preemption
from pagedrun.paged.scheduling.scheduler_state import SchedulerState
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import NO_UID, UNKNOWN_TOKEN, SequenceTable
from pagedrun.paged.scheduling.states import StatePool
from pagedrun.paged.scheduling.step_input import Drafted, StepBuilder, StepInput
from pagedrun.paged.values.engine_config import EngineConfig, PreemptionMode
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.request import Request

if TYPE_CHECKING:  # imports torch
    from pagedrun.paged.cache.prefix_store.stored_prefixes import StoredPrefixes


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Sequences and computed tokens of one step, at most. refill_share: see `Refill`.

    whole_prompts: no prompt is cut, and none reads the blocks of an earlier step; see
    `KVCacheSpec.is_transient`. A prompt with more tokens is a step of its own. staggers: answers of
    a known length begin one after another; see `Stagger`.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    refill_share: float = 0.0
    whole_prompts: bool = False
    staggers: bool = False

    @classmethod
    def of(
        cls, config: EngineConfig, *, whole_prompts: bool = False, staggers: bool = False
    ) -> "SchedulerLimits":
        """Return the limits of an engine."""
        return cls(
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.refill_share,
            whole_prompts,
            staggers,
        )


class Scheduler:
    """Chooses the sequences of each step from block counts alone; touches no tensor.

    Decoding sequences, the majority of most steps, are scheduled all at once: see
    `ChunkPlacer.decode`.
    """

    def __init__(
        self,
        groups: Seq[GroupPool],
        limits: SchedulerLimits,
        preemption_mode: PreemptionMode = PreemptionMode.SWAP,
        *,
        prefix_caching: bool = True,
        predictor: OutputLengthPredictor | None = None,
        stored: "StoredPrefixes | None" = None,
        num_eos_tokens: int = 0,
        states: StatePool | None = None,
    ) -> None:
        """Run the requests given to `add`, in their order.

        groups: memory of each group of layers; the first keeps all blocks of a sequence, and the
        others hold the window and a step's tokens of one sequence at least. predictor: decides
        which sequences are admitted beside others. prefix_caching: sequences reuse blocks that
        others computed. stored: prefixes of earlier runs. num_eos_tokens: tokens that end any
        answer. states: memory of recurrent layers, only with a single group.
        """
        assert states is None or len(groups) == 1, "states do not go with groups behind the first"
        table = SequenceTable(num_eos_tokens, len(groups))
        self._state = SchedulerState.of(groups, states, table, prefix_caching=prefix_caching)
        self.pool = groups[0].pool
        self.swap_space = groups[0].swap_space
        self.limits = limits
        self.predictor = predictor or OutputLengthPredictor()
        self.waiting: deque[Sequence] = deque()  # preempted ones, and at most one new one
        self.running: list[Sequence] = []
        self.ending: list[Sequence] = []  # scheduled for the last time, not yet finished
        self.states = self._state.states
        self.counts = self._state.counts
        self.table = self._state.table
        self.residency = self._state.residency
        self._chunks = ChunkPlacer(self._state)
        self._admission = Admission(self._state, self.predictor, stored)
        self._preemption = Preemption(self._state, preemption_mode)
        self._pending = PendingRequests()
        self.again = self._pending.again
        self._refill = Refill(limits.refill_share)
        self._stagger = Stagger(limits.max_num_seqs, self.predictor) if limits.staggers else None
        self._sequences: dict[int, Sequence] = {}  # by row index
        self._beams = BeamGroups(self._state, self._sequences)
        self._sampling: Int64s = np.zeros(0, dtype=np.int64)  # row indices of the last step
        self._drafted: Seq[Drafted] = ()  # in the last step
        self._running_rows: Int64s = self._sampling  # as of the step being scheduled

    @property
    def groups(self) -> tuple[KVGroup, ...]:
        """The blocks of each group of layers."""
        return self._state.groups

    @property
    def num_planned(self) -> int:
        """Added requests without a sequence yet."""
        return self._pending.num_planned

    @property
    def num_prompt_tokens_left(self) -> int:
        """Prompt tokens of running sequences that are still to be computed."""
        table, row_indices = self.table, self._running_rows
        left = table.num_prompt_tokens[row_indices] - table.num_computed_tokens[row_indices]
        is_there = table.uid[row_indices] != NO_UID
        return int(np.maximum(left[is_there], 0).sum())

    @property
    def may_refill(self) -> bool:
        """True if sequences may join the running ones; see `Refill`."""
        return self._refill.is_open(len(self.running))

    @property
    def has_work(self) -> bool:
        """True if any sequence is unfinished."""
        return bool(self.running or self.waiting or self.again or self.num_planned)

    @property
    def is_out(self) -> bool:
        """True if every added request is running or done, and no sequence waits to be resumed.

        Before that the prefix of the next waiting row must stay cached.
        """
        return not self.num_planned and not self.waiting and not self.again

    def add(self, planned: Iterable[PlannedRequest], count: int) -> None:
        """Add the next `count` requests of the plan, each taken when there is room; none of those
        added before may be left."""
        self._pending.add(planned, count)

    def end_plan(self) -> None:
        """Start no more requests, not even added ones: no later prompt needs a prefix."""
        self._pending.end_plan()
        self._state.end_plan()

    def begin_step(self) -> None:
        """Count a step: later events of blocks belong to it."""
        self.residency.step += 1

    def note_steps(self, count: int) -> None:
        """Count scheduled steps; `schedule` counts its own."""
        if self._stagger is not None:
            self._stagger.note_steps(count)

    def schedule(self, drafts: Mapping[int, Seq[int]] | None = None) -> StepInput:
        """Choose the next step: running sequences first, then new ones while memory lasts, then
        drafts.

        drafts: tokens that may follow the newest one of a sequence that decodes, by row index;
        computed as far as memory that nothing else needs and the tokens of a step last, see
        `accept`.

        Prompts longer than the remaining tokens of the step are cut into chunks; prefill chunks
        and decode tokens share a step. Raises `ValueError` if a planned sequence is longer than
        the pool.
        """
        self.note_steps(1)
        self._drop_drafts()
        step = StepBuilder(self.table)
        for kv_group in self._state.groups:
            kv_group.written.clear()
        self._note_running()
        budget = self.limits.max_num_batched_tokens
        if self.limits.whole_prompts:
            assert not self.running, "all rows of a step end with it"
            for block_id in self.pool.published:
                self.pool.retract(block_id)
        position = self._chunks.decode(self.running, self._running_rows, budget, step)
        budget -= position
        num_preempted = sum(self.counts.preemptions.values())
        while position < len(self.running) and budget > 0:
            chunks = self._chunks_at(position, budget)
            if self._reserve(chunks, step):
                budget -= self._add(chunks, step)
                position += len(chunks)
        preempted = sum(self.counts.preemptions.values()) > num_preempted
        if preempted or len(self.running) != len(self._running_rows):
            self._note_running()
        short = preempted
        may_join = not short and self.may_refill
        while may_join and not short and budget > 0 and self._num_free_slots > 0:
            candidate = self._next()
            group = None if candidate is None else self._beams.of(candidate)
            if candidate is None or not self._has_slots_for(group):
                break
            if self.states.must_wait(candidate, self.running, self._running_rows):
                break
            if self.limits.whole_prompts and candidate.num_tokens > budget:
                if self.running:
                    break
                budget = candidate.num_tokens
            if short := bool(group and self.running and not group.has_room(self.pool)):
                break
            if self.running and self._is_early(candidate):
                break
            if short := not self._admission.admit(
                candidate, self.running, self._running_rows, budget, step
            ):
                break
            self.running.append(self.waiting.popleft())
            self._running_rows = np.append(self._running_rows, candidate.row_index)
            if group is not None:
                group.is_running = True
                chunks = self._chunks_at(len(self.running) - 1, budget)
                short = not self._reserve(chunks, step)
                budget -= 0 if short else self._add(chunks, step)
                self._note_running()
                continue
            end = min(candidate.num_tokens, candidate.num_computed_tokens + budget)
            end = self.states.chunk_end(candidate, end)
            # A copied partial block may end after the blocks of the groups with a window.
            held = self._chunks.num_tokens_held(candidate)
            if end > held and not self._chunks.reserve(candidate, end, step):
                end = held
            budget -= self._add([(candidate, end)], step)
        if short or (may_join and self._num_free_slots <= 0):
            self._refill.close(len(self.running))
        elif may_join:
            self._refill.open()
        if short:
            self.counts.steps_short_of_memory += 1
            self.counts.blocks_held_when_short += self.pool.num_held
        num_chunks = len(step.row_indices)
        for row_index, tokens in (drafts or {}).items():
            budget -= self._chunks.draft(self._sequences[row_index], tokens[:budget], step)
        self.states.end_step()  # no draft writes what a chunk reads
        made = step.build()
        self._sampling = step.row_indices[made.samples[:num_chunks]]
        self._drafted = made.drafts
        return made

    def room_for_drafts(self) -> int:
        """Return the number of drafts for which the next step has tokens and state slots, if no
        sequence joins the running ones; free the memory of those that were not accepted."""
        self._drop_drafts()
        self._note_running()
        num_taken = int(self.states.needs_slot(self._running_rows).sum())
        num_tokens = max(self.limits.max_num_batched_tokens - len(self.running), 0)
        return max(self.states.num_spare(num_tokens + num_taken) - num_taken, 0)

    def accept(self, row_index: int, count: int) -> None:
        """Keep keys and values of the first drafts of a sequence, which its answer has by now."""
        self._chunks.accept(row_index, count)

    def _drop_drafts(self) -> None:
        """Free the memory of drafts of the last step that were not accepted."""
        self.states.drop_drafts()
        for each in self._drafted:
            if self.table.uid[each.row_index] == each.uid:
                self._chunks.drop_drafts(self._sequences[each.row_index])
        self._drafted = ()

    def _is_early(self, candidate: Sequence) -> bool:
        """Return whether a sequence must wait for the step in which it begins; see `Stagger`."""
        if self._stagger is None:
            return False
        return self._stagger.delays(candidate, self.pool, self.num_planned)

    def update(self, tokens: "Int64s | int" = UNKNOWN_TOKEN) -> Int64s:
        """Append the tokens sampled in the last step; return the row indices of those that grew.

        tokens: one for each draw of the step, in order, or one number for all. Where a prompt was
        computed for several samples, the siblings are forked here: they share every block, and the
        first to write to one copies it. Raises `ValueError` for another number of tokens.
        """
        table, grown = self.table, self._sampling
        parents = grown[table.num_pending[grown] > 1]
        grown, families = self._forked(grown) if len(parents) else (grown, [])
        if not isinstance(tokens, int) and len(tokens) != len(grown):
            raise ValueError(f"{len(tokens)} tokens for {len(grown)} draws")
        table.append_outputs(grown, tokens)
        if table.only_scores[grown].any():
            table.give_tokens(grown)
        table.num_draw[grown] = np.arange(len(grown))
        for siblings in families:
            self._adopt(siblings)
        for row_index in parents.tolist():
            self.states.unpin(row_index)
        self._sampling = grown[:0]
        return grown

    def sequence_at(self, row_index: int) -> Sequence:
        """Return the sequence at a row index of the table."""
        return self._sequences[row_index]

    def retire(self, sequence: Sequence) -> None:
        """Stop scheduling a sequence, which keeps its blocks until `finish`.

        All its tokens are computed, but the host has not read the last ones.
        """
        try:
            self.running.remove(sequence)
        except ValueError:
            self.waiting.remove(sequence)
            self._state.unpin(sequence)
        self.states.retire(sequence.row_index)
        self.ending.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Remove a sequence from the run, in any state, and free its blocks."""
        if sequence not in self.waiting:
            self.predictor.learn(sequence)
        if sequence not in self.ending:
            self.retire(sequence)
        self.ending.remove(sequence)
        self._state.release(sequence)
        self.residency.end(sequence)
        self._state.drop_host_blocks(sequence)
        self.table.remove(sequence.row_index)
        del self._sequences[sequence.row_index]

    def beams(self, row: int) -> list[Sequence]:
        """Return the beams of a request that run, best first."""
        return list(self._beams.of_row(row).members)

    def branch(self, row: int, beams: Seq[NextBeam]) -> None:
        """Replace the beams of a request by those chosen by its search.

        The children of a beam share every block, and the first to write to one copies it; a beam
        without children frees its blocks.
        """
        group = self._beams.of_row(row)
        first, count = self.running.index(group.members[0]), len(group.members)
        self._beams.branch(group, beams)
        self.running[first : first + count] = group.members

    def end_beams(self, row: int) -> None:
        """Remove all beams of a request from the run."""
        for beam in self.beams(row):
            self.finish(beam)
        self._beams.end(row)

    def fail(self, request: Request) -> None:
        """End every sample of a request, in any state.

        Its published blocks are retracted first: keys and values that led to NaN must not be
        shared.
        """
        everyone = self._sequences.values()
        for sequence in [each for each in everyone if each.request.index == request.index]:
            sequence.truncate(0)  # also of those that the next step computes
            self._state.retract(sequence)
            self.finish(sequence)
        self._beams.end(request.index)

    def check(self) -> None:
        """Assert that block tables, pool and swap space agree. For tests, after every step."""
        self._state.check([*self.running, *self.ending], list(self.waiting))
        every = (*self.running, *self.waiting, *self.ending)
        assert {each.row_index: each for each in every} == self._sequences, "row indices"

    def _next(self) -> Sequence | None:
        """Return the first waiting sequence, else a new one; None at the end of the plan."""
        if not self.waiting:
            planned = self._pending.next()
            if planned is None:
                return None
            sequence = Sequence.start(self.table, planned)
            if self.pool.num_blocks_for(sequence.max_num_tokens) > self.pool.num_blocks:
                raise ValueError("the sequence is longer than the pool")
            self._sequences[sequence.row_index] = sequence
            if sequence.request.params.has_beams:
                self._beams.begin(sequence)
            self.waiting.append(sequence)
        return self.waiting[0]

    @property
    def _num_free_slots(self) -> int:
        """Free batch slots."""
        return self.limits.max_num_seqs - len(self.running) - self._beams.num_free_slots

    def _has_slots_for(self, group: BeamGroup | None) -> bool:
        """Return whether a group of beams may run beside the others; alone it always may."""
        return group is None or not self.running or group.width <= self._num_free_slots

    def _chunks_at(self, position: int, budget: int) -> list[tuple[Sequence, int]]:
        """Return the running sequence at a position, or all beams of its request, each with the
        end of its chunk."""
        sequence = self.running[position]
        group = self._beams.of(sequence)
        if group is None:
            end = min(sequence.num_tokens, sequence.num_computed_tokens + budget)
            return [(sequence, self.states.chunk_end(sequence, end))]
        if group.folded:
            behind = position + len(group.members)
            self._beams.unfold(group)
            self.running[position:behind] = group.members
        is_first = budget == self.limits.max_num_batched_tokens
        ends = group.ends(budget, is_first=is_first)
        if len(ends) == 1:
            ends = [self.states.chunk_end(group.members[0], ends[0])]
        return list(zip(group.members, ends, strict=True))

    def _reserve(self, chunks: list[tuple[Sequence, int]], step: StepBuilder) -> bool:
        """Make room for chunks by preempting the youngest sequences; return False if the chunks'
        own sequences were preempted."""
        first, _ = chunks[0]
        for sequence, end in chunks:
            while not self._chunks.reserve(sequence, end, step):
                cause = self._preemption.shortage(sequence, end)
                victim = self._pop_youngest()
                self._preemption.preempt(victim, cause, step, self._beams.first_divergence(victim))
                self.waiting.appendleft(victim)
                if victim is first:
                    return False
        return True

    def _pop_youngest(self) -> Sequence:
        """Remove the last running sequence from the batch and return it; of a group of beams the
        first one, which waits for all."""
        group = self._beams.of(self.running[-1])
        if group is not None:
            self.running[-len(group.members) :] = group.members[:1]
            self._beams.fold(group)
        return self.running.pop()

    def _add(self, chunks: list[tuple[Sequence, int]], step: StepBuilder) -> int:
        """Add chunks to the step; return the number of their tokens."""
        return sum(
            self._chunks.add(sequence, end, step)
            for sequence, end in chunks
            if end > sequence.num_computed_tokens
        )

    def _note_running(self) -> None:
        row_indices = map(attrgetter("row_index"), self.running)
        self._running_rows = np.fromiter(row_indices, dtype=np.int64, count=len(self.running))

    def _forked(self, row_indices: Int64s) -> tuple[Int64s, list[list[Sequence]]]:
        """Fork the sequences that drew for several samples; return all row indices and siblings.

        In the order of the draws: a sequence, then its siblings.
        """
        grown: list[int] = []
        families: list[list[Sequence]] = []
        for row_index in row_indices.tolist():
            siblings = self._sequences[row_index].fork()
            self._sequences |= {each.row_index: each for each in siblings}
            grown += [row_index, *(each.row_index for each in siblings)]
            families.append(siblings)
        return np.array(grown, dtype=np.int64), families

    def _adopt(self, children: list[Sequence]) -> None:
        """Add forked siblings to the running sequences; those without a batch slot wait without
        blocks."""
        self.counts.forks += len(children)
        room = max(self._num_free_slots, 0)
        for child in children[:room]:
            self._state.share(child)
            self.residency.begin(child, child.num_blocks)
            self.running.append(child)
        for child in children[room:]:
            self._preemption.defer(child)
        self.waiting.extendleft(reversed(children[room:]))


class PendingRequests:
    """Requests of the plan in order, behind those that are run `again` for more samples."""

    def __init__(self) -> None:
        self.again: deque[PlannedRequest] = deque()  # to draw more samples of, before new ones
        self.num_planned = 0  # added requests without a sequence yet
        self._planned: Iterator[PlannedRequest] = iter(())

    def add(self, planned: Iterable[PlannedRequest], count: int) -> None:
        """Add the next `count` requests of the plan; none of those before may be left."""
        assert not self.num_planned, "requests added before are left"
        self._planned = iter(planned)
        self.num_planned = count

    def end_plan(self) -> None:
        """Drop the requests of the plan."""
        self._planned, self.num_planned = iter(()), 0

    def next(self) -> PlannedRequest | None:
        """Return the next request, None if there is none."""
        if self.again:
            return self.again.popleft()
        if not self.num_planned:
            return None
        planned, self.num_planned = next(self._planned), self.num_planned - 1
        if not self.num_planned:
            self._planned = iter(())  # frees the plan
        return planned
