"""Simulation: a run without a model, with the real scheduler and the real block pool.

Every answer is assumed to have `max_tokens` tokens, which is all that is known beforehand; a
run with `ignore_eos` does exactly what is simulated.

`PrefixReads` counts the keys and values that attention reads. The engine finds from block
tables which rows share a partition (`prefix_sharing`); the plan knows it beforehand: two rows in
run order have in common what every row between them has. The result equals
`ForwardBatch.tokens_read` of the run.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from pagedrun.kernels.array_types import Int32s, Int64s
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.cache.block_pool import SwapSpace
from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.metrics.report_sections import GroupFigures, PoolFigures, StateFigures
from pagedrun.paged.metrics.run_statistics import RunStatistics
from pagedrun.paged.metrics.timeline import Decimated, SchedulerCounts, StepRecord
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.pool_sizing import SlotSizes
from pagedrun.paged.scheduling.admission_policy import OutputLengthPredictor
from pagedrun.paged.scheduling.kv_groups import GroupPool
from pagedrun.paged.scheduling.scheduler import Scheduler, SchedulerLimits
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import SequenceTable
from pagedrun.paged.scheduling.states import StatePool
from pagedrun.paged.scheduling.step_input import StepInput
from pagedrun.paged.values.engine_config import EngineConfig, PreemptionMode
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput

TIMELINE_RECORDS = 500


@dataclass(frozen=True, slots=True)
class Simulation:
    """Results of a simulated run of the first `num_rows` rows, in run order.

    step_tokens, sequence_steps: number of steps by their tokens, and by the sequences that get one.
    """

    num_rows: int
    num_steps: int
    max_running: int
    generated_tokens: int
    counts: SchedulerCounts
    kv: PoolFigures
    groups: list[GroupFigures]
    timeline: tuple[StepRecord, ...]
    reads_without_sharing: int
    reads_with_sharing: int
    at_peak: Int64s
    step_tokens: Counter[int]
    sequence_steps: Counter[int]
    states: StateFigures | None = None


class Simulator:
    """Simulates plans without a model, one window after the other. Call `run` once."""

    def __init__(
        self,
        plans: Iterable[Plan],
        config: EngineConfig,
        *,
        shapes: Seq[PoolShape],
        bytes_read: Mapping[int | None, int],
        states: SlotSizes | None = None,
        max_model_len: int,
        max_rows: int | None = None,
        async_scheduling: bool = False,
        whole_prompts: bool = False,
        staggers: bool = False,
        max_records: int = TIMELINE_RECORDS,
    ) -> None:
        """Simulate the first `max_rows` rows of the plans, None for all.

        plans: requested one by one, each when the rows before it have begun. shapes: of the KV
        pools. bytes_read: by attention of a token, in all layers with a window, or with None.
        states: slots of recurrent layers. max_model_len: tokens that a contiguous engine would
        reserve for a row. async_scheduling: the tokens of a step are seen after the next one has
        begun, so that a sequence frees its blocks a step later. whole_prompts, staggers: see
        `SchedulerLimits`. max_records: of the timeline; the fewer, the more steps are simulated at
        once.
        """
        self._plans = iter(plans)
        self._limits = SchedulerLimits.of(config, whole_prompts=whole_prompts, staggers=staggers)
        self._prefix_caching = config.prefix_caching
        self._max_rows = max_rows
        self._async_scheduling = async_scheduling
        self._unseen: deque[list[Sequence]] = deque()  # ended in steps not yet read by the host
        self._num_total = 0  # rows of the plans asked for so far
        self._num_begun = 0
        self._is_last = False
        self._asked: dict[int, list[Request]] = {}
        self._row_indices: dict[int, int] = {}
        self._slots = states
        self._scheduler = costless_scheduler(
            config, self._limits, shapes, predictor=_FullLengths(), states=states
        )
        self._pool = self._scheduler.pool
        self._statistics = RunStatistics(
            block_size=config.block_size,
            pools=shapes,
            max_model_len=max_model_len,
            timeline=Decimated(max_records),
        )
        self._reads = PrefixReads(bytes_read, shared_prefix_attention=config.prefix_once)
        self._num_steps = 0
        self._step_tokens: Counter[int] = Counter()
        self._sequence_steps: Counter[int] = Counter()
        self._num_finished = 0
        self._max_running = 0
        self._peak = (0, 0)  # blocks, and the tokens in them
        self._at_peak: list[tuple[int, int, int]] = []

    def run(self) -> Simulation:
        """Simulate to the end."""
        scheduler, statistics = self._scheduler, self._statistics
        while self._has_work():
            num_steps = self._num_uneventful_steps()
            if num_steps > 1:
                self._decode(num_steps)
            else:
                self._step()
            self._record_step()
        return Simulation(
            num_rows=self._num_begun,
            num_steps=self._num_steps,
            max_running=self._max_running,
            generated_tokens=statistics.generated_tokens,
            counts=scheduler.counts,
            kv=statistics.kv(),
            groups=statistics.groups(),
            timeline=statistics.timeline.items,
            reads_without_sharing=self._reads.without_sharing,
            reads_with_sharing=self._reads.without_sharing - self._reads.saved,
            step_tokens=self._step_tokens,
            sequence_steps=self._sequence_steps,
            at_peak=np.array(sorted(self._at_peak), dtype=np.int64).reshape(-1, 3),
            states=self._state_figures(),
        )

    def _state_figures(self) -> StateFigures | None:
        if self._slots is None:
            return None
        return self._scheduler.states.figures(self._slots.bytes_per_slot)

    def _has_work(self) -> bool:
        """Return whether there is a step to do; takes the next plan when one is used up."""
        while self._scheduler.is_out and not self._is_last:
            num_left = None if self._max_rows is None else self._max_rows - self._num_begun
            plan = next(self._plans, None) if num_left != 0 else None
            if plan is None:
                self._is_last = True
                self._scheduler.end_plan()
            else:
                count = len(plan) if num_left is None else min(len(plan), num_left)
                self._note_plan(plan)
                self._scheduler.add(self._placed(plan), count)
        return self._scheduler.has_work or bool(self._unseen)

    def _note_plan(self, plan: Plan) -> None:
        self._num_total += len(plan)
        self._asked |= plan.duplicates.asked
        self._statistics.note_sharing(plan.sharing)
        common = plan.tree.common if self._prefix_caching else np.zeros_like(plan.tree.common)
        self._reads.append(common, plan.tree.num_read_once_tokens)

    def _placed(self, plan: Plan) -> Iterator[PlannedRequest]:
        for planned in plan:
            self._row_indices[planned.request.index] = self._num_begun
            self._num_begun += 1
            yield replace(planned, request=planned.request.without_beams())

    def _step(self) -> None:
        """Do one step of the run, without the arithmetic."""
        self._num_steps += 1
        launched = self._scheduler.has_work and self._launch()
        while len(self._unseen) > int(self._async_scheduling and launched):
            for sequence in self._unseen.popleft():
                self._note_finished(sequence)
                self._scheduler.finish(sequence)

    def _launch(self) -> bool:
        """Start the next step; return whether there was anything to compute."""
        scheduler = self._scheduler
        step = scheduler.schedule()
        if not step.num_chunks:
            assert self._unseen, "no sequence can go on"
            return False
        self._step_tokens[step.num_tokens] += 1
        self._note_step(step.num_tokens, step.num_samples)
        self._reads.note(step, np.array([self._row_indices[row] for row in step.rows.tolist()]))
        table, grown = scheduler.table, scheduler.update(0)
        self._statistics.generated_tokens += len(grown)
        self._sequence_steps[len(grown)] += 1
        is_last = table.num_output_tokens[grown] == table.max_tokens[grown]
        ended = [scheduler.sequence_at(row_index) for row_index in grown[is_last].tolist()]
        for sequence in ended:
            scheduler.retire(sequence)
        self._unseen.append(ended)
        return True

    def _num_uneventful_steps(self) -> int:
        """Return the number of next steps in which all running sequences decode a token and nothing
        else happens.

        No sequence ends, forks, is admitted or preempted, and no block is copied. Fewer steps where
        the pool would not hold their blocks if none were freed.
        """
        running, limits = self._scheduler.running, self._limits
        if len(running) > limits.max_num_batched_tokens or not running or any(self._unseen):
            return 0
        none_waits = self._scheduler.is_out
        has_slots = len(running) < limits.max_num_seqs and self._scheduler.may_refill
        if has_slots and not none_waits:
            return 0
        table, row_indices = self._scheduler.table, self._running_rows()
        if (table.num_pending[row_indices] > 1).any():
            return 0
        left = table.max_tokens[row_indices] - table.num_output_tokens[row_indices]
        num_steps = min(int(left.min()) - 1, self._num_steps_to_next_record())
        stored = table.num_stored_tokens[row_indices]
        is_last = stored == table.num_tokens(row_indices) - 1
        if (
            num_steps < 2
            or not (is_last & (table.num_computed_tokens[row_indices] == stored)).all()
        ):
            return 0
        if self._scheduler.states.needs_slot(row_indices).any():
            return 0
        for group in self._scheduler.groups:
            if group.writes_shared(row_indices, stored):
                return 0
            while group.num_missing(row_indices, stored + num_steps) > group.pool.num_free:
                if num_steps < 2:
                    return 0
                num_steps //= 2
        return num_steps

    def _decode(self, num_steps: int) -> None:
        """Do uneventful steps at once; counters and peaks are the same as one by one."""
        table, row_indices = self._scheduler.table, self._running_rows()
        stored = table.num_stored_tokens[row_indices]
        rows = [self._place(each) for each in self._scheduler.running]
        self._reads.note_decoding(
            stored, np.array(rows), table.num_read_once_tokens[row_indices], num_steps
        )
        ends = stored + num_steps
        for group in self._scheduler.groups:
            if group.window is None:
                group.grow(row_indices, stored, ends)
                continue
            for step in range(num_steps):  # blocks freed by one step are allocated by the next ones
                group.free_all_behind(row_indices, stored + step)
                group.grow(row_indices, stored + step, stored + step + 1)
        table.num_computed_tokens[row_indices] = table.num_stored_tokens[row_indices] = ends
        ever = table.num_tokens_ever_computed[row_indices]
        table.num_tokens_ever_computed[row_indices] = np.maximum(ever, ends)
        table.append_outputs(row_indices, 0, num_steps)
        self._num_steps += num_steps
        self._scheduler.note_steps(num_steps)
        self._statistics.generated_tokens += num_steps * len(row_indices)
        self._scheduler.counts.computed_tokens += num_steps * len(row_indices)
        self._step_tokens[len(row_indices)] += num_steps
        self._sequence_steps[len(row_indices)] += num_steps
        self._note_step(0, 0)

    def _running_rows(self) -> Int64s:
        return np.array([each.row_index for each in self._scheduler.running], dtype=np.int64)

    def _num_steps_to_next_record(self) -> int:
        stride = self._statistics.timeline.stride
        return stride - self._num_steps % stride

    def _note_step(self, num_tokens: int, num_samples: int) -> None:
        active = [*self._scheduler.running, *self._scheduler.ending]
        pools = [group.pool for group in self._scheduler.groups]
        self._statistics.note_step(num_tokens, num_samples, pools, len(active))
        self._max_running = max(self._max_running, len(active))
        held = (self._pool.num_held, self._pool.num_tokens_held)
        if held > self._peak:
            self._peak = held
            self._at_peak = [
                (self._place(s), s.num_stored_tokens, s.num_prompt_tokens) for s in active
            ]

    def _note_finished(self, sequence: Sequence) -> None:
        self._num_finished += 1
        output = SampleOutput(0, "", tuple(sequence.output_token_ids), FinishReason.LENGTH)
        # A greedy request for several samples is computed once and answered with as many.
        asked = self._asked.get(sequence.request.index)
        outputs = (output,) * (asked[0].params.n if asked else 1)
        completion = Completion(sequence.request, outputs, sequence.num_cached_tokens)
        self._statistics.note_completion(completion)

    @property
    def _num_to_come(self) -> int:
        last = self._num_total if self._max_rows is None else self._max_rows
        return min(last, self._num_total) - self._num_begun

    def _place(self, sequence: Sequence) -> int:
        return self._row_indices[sequence.request.index]

    def _record_step(self) -> None:
        scheduler, pool, statistics = self._scheduler, self._pool, self._statistics
        if not statistics.timeline.wants(self._num_steps):
            return
        statistics.timeline.add(
            self._num_steps,
            StepRecord.of(
                pool,
                scheduler.counts,
                t=0.0,  # how long a step takes is not known
                step=self._num_steps,
                running=len(scheduler.running),
                waiting=self._num_to_come + len(scheduler.waiting),
                finished=self._num_finished,
                total=self._num_begun + self._num_to_come,
                generated_tokens=statistics.generated_tokens,
            ),
        )


def costless_scheduler(
    config: EngineConfig,
    limits: SchedulerLimits,
    shapes: Seq[PoolShape],
    *,
    predictor: OutputLengthPredictor | None = None,
    states: SlotSizes | None = None,
) -> Scheduler:
    """Return the scheduler of a run, with pools of these sizes and no memory behind them."""
    block_bytes = sum(shape.bytes_per_token for shape in shapes) * config.block_size
    num_host_blocks = SwapSpace.num_blocks_in(
        config.swap_space_bytes - (0 if states is None else states.host_bytes), block_bytes
    )
    groups = [
        GroupPool.of(config.block_size, shape.num_blocks, num_host_blocks, shape.window)
        for shape in shapes
    ]
    return Scheduler(
        groups,
        limits,
        PreemptionMode(config.preemption_mode),
        prefix_caching=config.prefix_caching,
        predictor=predictor,
        states=None if states is None else _state_pool(states),
    )


def _state_pool(sizes: SlotSizes) -> StatePool:
    return StatePool.of(sizes.num_slots, sizes.num_host_slots, whole_prompts=sizes.are_opaque)


def common_with_previous(common: Int32s, places: Int64s) -> Int64s:
    """Return the tokens that each of some rows has in common with the previous one among them.

    common: [num_rows] int32, tokens that each row of the run order has in common with the row
    before. places: [num_places] int64, positions, strictly ascending. Returns [num_places - 1]
    int64.
    """
    if len(places) < 2:
        return np.zeros(0, dtype=np.int64)
    between = common[places[0] + 1 : places[-1] + 1]
    return np.minimum.reduceat(between, places[:-1] - places[0]).astype(np.int64)


class _FullLengths(OutputLengthPredictor):
    """Predicts that each answer has `max_tokens` tokens, as simulated ones do."""

    def knows(self, table: SequenceTable, row_index: int) -> bool:
        return True


class PrefixReads:
    """Bytes of keys and values that attention reads, step by step.

    `without_sharing` counts every row's whole context; `saved` of these bytes are in partitions
    that other rows of the same step read too, all but the first of them. Only layers without a
    window read together.
    """

    def __init__(
        self, bytes_read: Mapping[int | None, int], *, shared_prefix_attention: bool = True
    ) -> None:
        """Count for layers that read so many bytes of a token, by their window, None for full
        attention."""
        self._bytes_read = bytes_read
        self._bytes_together = bytes_read.get(None, 0) if shared_prefix_attention else 0
        self._common = np.zeros(0, dtype=np.int32)
        self._last_read_once = 0
        self._places: Int64s = np.zeros(0, dtype=np.int64)
        self._saved_before = 0
        self.without_sharing = 0
        self.saved = 0

    def append(self, common: Int32s, num_read_once_tokens: Int32s) -> None:
        """Add a window to the run order. common: [num_rows] int32, tokens in common with the
        previous row. num_read_once_tokens: [num_rows] int32, those that are read together with
        other rows."""
        common = np.minimum(common, num_read_once_tokens)
        common[:1] = np.minimum(common[:1], self._last_read_once)
        self._common = np.concatenate([self._common, common])
        if len(num_read_once_tokens):
            self._last_read_once = int(num_read_once_tokens[-1])

    def note(self, step: StepInput, places: Int64s) -> None:
        """Count one step; `places` are the chunks' rows in run order.

        A chunk of a prompt reads its context once, each generated token reads it again.
        """
        starts, ends = step.starts, step.ends
        borders = np.clip(step.num_prompt_tokens, starts, ends)
        is_prefill = starts < borders
        for window, num_bytes in self._bytes_read.items():
            read = read_by_chunks(starts[is_prefill], borders[is_prefill], window)
            self.without_sharing += num_bytes * (read + read_by_tokens(borders, ends, window))
        if self._bytes_together:
            num_tokens = ends - borders
            prefixes = step.num_read_once_tokens
            self._save(np.repeat(places, num_tokens), np.repeat(prefixes, num_tokens), 1)

    def note_decoding(
        self, stored: Int64s, places: Int64s, prefixes: Int64s, num_steps: int
    ) -> None:
        """Count steps in which the same rows each decode one token.

        stored: tokens of each row before. places: their positions in run order. prefixes: leading
        tokens that each row reads together with others.
        """
        starts = stored
        for window, num_bytes in self._bytes_read.items():
            read = read_by_tokens(starts, starts + num_steps, window)
            self.without_sharing += num_bytes * read
        if self._bytes_together:
            self._save(places, prefixes, num_steps)

    def _save(self, rows: Int64s, prefixes: Int64s, num_steps: int) -> None:
        """Count the bytes of partitions that another row of the step has read, in equal steps.

        rows: [num_tokens] int64, position of each token's row. prefixes: [num_tokens] int64.
        """
        if len(rows) < 2:
            return
        places, first, counts = np.unique(rows, return_index=True, return_counts=True)
        if not np.array_equal(places, self._places):
            shared = common_with_previous(self._common, places) // PARTITION_TOKENS
            self._places, self._saved_before = places, int(shared.sum())
        # Samples of one row share all whole partitions of its prompt.
        partitions = prefixes[first] // PARTITION_TOKENS
        again = int(((counts - 1) * partitions).sum())
        tokens = (self._saved_before + again) * PARTITION_TOKENS
        self.saved += tokens * num_steps * self._bytes_together


def read_by_chunks(starts: Int64s, ends: Int64s, window: int | None) -> int:
    """Return the tokens that prompt tokens `[start, end)`, each chunk at once, read in a layer."""
    seen = ends
    if window is not None:
        # The chunk itself, and what the first of it sees before it.
        seen = np.minimum(ends, ends - starts + window - 1)
    return int(seen.sum())


def read_by_tokens(starts: Int64s, ends: Int64s, window: int | None) -> int:
    """Return the tokens that tokens at positions `[start, end)`, one by one, read in a layer.

    The token at position p reads p + 1 tokens, or the window if that is less.
    """
    num_tokens = ends - starts
    # The contexts of the first tokens fit into the window.
    num_whole = num_tokens if window is None else np.clip(window - starts, 0, num_tokens)
    read = num_whole * (2 * starts + num_whole + 1) // 2
    if window is not None:
        read = read + (num_tokens - num_whole) * window
    return int(read.sum())
