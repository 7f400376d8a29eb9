"""Run: the main loop of the engine.

Each iteration schedules a step, launches it, updates the sequences, reads back the tokens of a step
and yields the completions of finished requests. On a device with `async_scheduling` the tokens of a
step are read one step late, so that the device computes the next step while the host checks stop
conditions, detokenizes and writes. Tokens computed after the stop token of a row are discarded; the
answers are the same.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from pagedrun.kernels.array_types import Int64s
from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.cache.kv_cache import KVCache, OpaqueStates
from pagedrun.paged.cache.prefix_store.stored_prefixes import StoredPrefixes
from pagedrun.paged.execution.decode_buffers import GraphShape
from pagedrun.paged.execution.decode_graphs import DecodeGraphs
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.logits.grammar_mask import NO_FORCED_TOKEN
from pagedrun.paged.execution.logits.sampler import NO_TOKEN, no_token_error
from pagedrun.paged.execution.model_runner import AttentionReads, ModelRunner
from pagedrun.paged.execution.pool_memory import MemoryLedger
from pagedrun.paged.execution.repeated_steps import RepeatedSteps
from pagedrun.paged.execution.score_log import ScoreLog
from pagedrun.paged.execution.step_result import HostLogprobs, InFlight
from pagedrun.paged.metrics.report_sections import (
    EngineReport,
    LoadTimes,
    StageTimes,
)
from pagedrun.paged.metrics.run_statistics import RunStatistics, memory_report
from pagedrun.paged.metrics.snapshot import Snapshot
from pagedrun.paged.metrics.timeline import RunHooks, StepRecord
from pagedrun.paged.models.streaming.residency import ReadFigures, StreamedWeights
from pagedrun.paged.planning.duplicates import OutputCollector
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.planning.plan_part import PlannedPart
from pagedrun.paged.planning.pool_sizing import too_large
from pagedrun.paged.planning.windows import BackgroundPlanner, PlannedWindow, is_ready
from pagedrun.paged.scheduling.admission_policy import (
    AdmissionDeadline,
    OutputLengthPredictor,
    RequestListener,
)
from pagedrun.paged.scheduling.kv_groups import GroupPool
from pagedrun.paged.scheduling.monitoring import (
    MIN_STEPS,
    StallDetector,
    engine_state,
    recorder_of,
    stalled,
)
from pagedrun.paged.scheduling.scheduler import Scheduler, SchedulerLimits
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.states import StatePool
from pagedrun.paged.scheduling.step_input import StepInput
from pagedrun.paged.scheduling.stopping import BeamSearches, StopRule
from pagedrun.paged.speculation.mtp_drafts import FollowedStep
from pagedrun.paged.speculation.speculation import Speculation, can_speculate
from pagedrun.paged.speculation.verification import Followed, Verification
from pagedrun.paged.values.engine_config import EngineConfig, PreemptionMode
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.request import Completion, Request, SampleOutput


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """Policies shared by all runs of an engine.

    `new_predictor` makes the predictor of output lengths that admits rows in one run. `read_once`:
    the rule for reading a shared prefix once for all of its rows, None for that of the device. Up
    to `min_stall_steps` consecutive steps without a token are never a stall.
    """

    new_predictor: Callable[[], OutputLengthPredictor] = OutputLengthPredictor
    read_once: ReadOnce | None = None
    min_stall_steps: int = MIN_STEPS


DEFAULT_POLICY = RunPolicy()


class Run:
    """Runs planned windows of requests with one pool. Iterate it once."""

    def __init__(
        self,
        loaded: LoadedModel,
        windows: Iterator[PlannedWindow[PlannedPart]],
        cache: KVCache,
        graphs: DecodeGraphs | None,
        budget: MemoryBudget,
        *,
        config: EngineConfig,
        policy: RunPolicy,
        reserved_len: int,
        times: LoadTimes,
        hooks: RunHooks,
        stored: StoredPrefixes | None = None,
        ends_at: float | None = None,
    ) -> None:
        """Prepare a run of the windows; the next window begins when the last is scheduled.

        A run waits for the next window, except for a `WindowQueue`. reserved_len: tokens that one
        length for all rows would reserve. ends_at: rows that would not be finished by then
        (`time.monotonic`) are not started.
        """
        self._config = config
        self._model = model = loaded.model
        self._read_before = None if model.streamed is None else copy(model.streamed.figures)
        sampler, tokenizer = loaded.sampler, loaded.tokenizer
        self._times: StageTimes = {**times, "plan_s": 0.0}
        self._hooks = hooks
        self._windows = windows
        self._num_windows = self._num_total = self._num_finished = self._num_steps = 0
        self._num_passes = 0  # of the model
        self._num_prompt_tokens = 0
        self._is_last = self.is_cut = False
        self._device = loaded.device
        self.cache = cache
        self.scheduler = Scheduler(
            [
                GroupPool.of(
                    cache.block_size, each.num_blocks, each.num_host_blocks, each.spec.window
                )
                for each in cache.groups
            ],
            SchedulerLimits.of(
                config, whole_prompts=cache.is_transient, staggers=model.streamed is not None
            ),
            PreemptionMode(config.preemption_mode),
            prefix_caching=config.prefix_caching,
            predictor=policy.new_predictor(),
            stored=stored,
            num_eos_tokens=len(sampler.eos_token_ids),
            states=state_pool(cache),
        )
        self.pool = self.scheduler.pool
        self._stored = stored
        self.statistics = RunStatistics(
            block_size=config.block_size,
            pools=cache.shapes,
            max_model_len=reserved_len,
        )
        self._recorder = recorder_of(self.scheduler, cache.shapes)
        self._sampler = sampler
        self._grammars = loaded.grammar_mask
        self._runner = ModelRunner(
            model,
            cache,
            sampler,
            loaded.device,
            shared_prefix_attention=config.prefix_once,
            graphs=graphs,
            repeated=RepeatedSteps.of(
                model, cache, loaded.device.kernels, eager=config.enforce_eager
            ),
        )
        self._speculation = self._speculating(config.speculate)
        self._stop_rule = StopRule(tokenizer, sampler.eos_token_ids)
        self._searches = BeamSearches(self.scheduler, self._stop_rule)
        self._answers = OutputCollector()
        self._scores = ScoreLog(lambda token: tokenizer.decode([token], skip_special_tokens=False))
        self._ledger = MemoryLedger(
            model, cache, loaded.device, budget, loaded.stored_bytes, loaded.linears, graphs
        )
        self._last = last = AdmissionDeadline(ends_at)
        self._by_row: tuple[RequestListener, ...] = (self._scores, self._searches, last)
        self._in_flight: deque[InFlight] = deque()
        self._watch = StallDetector(
            model.network.max_position_embeddings,
            config.max_num_batched_tokens,
            policy.min_stall_steps,
        )

    def __iter__(self) -> Iterator[Completion]:
        """Yield one completion per request, as they finish."""
        began, statistics = time.perf_counter(), self.statistics
        while True:
            self._check_deadline()
            yield from self._admit_windows()
            if not (self.scheduler.has_work or self._in_flight):
                return
            self.scheduler.begin_step()
            before, overlaps = statistics.last_step, bool(self._in_flight)
            may_wait = self.scheduler.has_work and self._launch()
            while len(self._in_flight) > int(may_wait):
                yield from self._read_back(self._in_flight.popleft())
            now = time.perf_counter() - began
            # With async scheduling this iteration has waited for the previous step.
            settled = before if self._device.async_scheduling else statistics.last_step
            statistics.note_seconds(now - statistics.run_s, *settled)
            if self._speculation is not None:
                is_usual = self._runner.is_usual and not (overlaps or self._in_flight)
                self._speculation.note_seconds(now - statistics.run_s, is_usual=is_usual)
            statistics.run_s = now
            self._record_step()

    def close(self) -> None:
        """Stop the planning of further windows, and remove all requests from the logits stage."""
        if isinstance(self._windows, BackgroundPlanner):
            self._windows.close()
        self._sampler.end_all()

    def _check_deadline(self) -> None:
        """Stop to admit rows if further ones would not finish in time."""
        if self._last.is_over and (self.scheduler.num_planned or not self._is_last):
            self.is_cut = self._is_last = True
            self.scheduler.end_plan()

    def _admit_windows(self) -> Iterator[Completion]:
        """Add the next window if the last is scheduled; yield the completions of rows that cannot
        run.

        The run waits for the planner only here, so that the rows of each step do not depend on the
        time at which a window was ready. With a feed they do, but the bytes of the rows do not.
        """
        while self.scheduler.is_out and not self._is_last:
            if not is_ready(self._windows, wait=not (self.scheduler.has_work or self._in_flight)):
                return
            window = next(self._windows, None)
            if window is None:
                self._is_last = True
                self.scheduler.end_plan()
            else:
                yield from self._begin(window)

    def _begin(self, window: PlannedWindow[PlannedPart]) -> Iterator[Completion]:
        """Add a window: its requests go to the scheduler, which makes sequences one by one. Yields
        the completions of those that cannot be run."""
        self._num_windows += 1
        if self._num_windows > 1 and self._hooks.on_window is not None:
            self._hooks.on_window()
        plan = window.plan
        self._times["plan_s"] += window.plan_s
        self._num_total += len(window)
        self._num_prompt_tokens += plan.num_prompt_tokens
        self._recorder.note_prefixes(window.prefixes)
        self._answers.expect(plan.duplicates.asked)
        if self._speculation is not None and self._stored is None:  # a store serves later runs
            self._speculation.note_requests(plan.rows.requests)
            self._runner.keeps_states &= self._speculation.uses_mtp
        self.statistics.note_sharing(plan.sharing)
        requests = iter(plan) if self._stored is None else self._stored.watched(plan)
        self.scheduler.add(map(self._entered, requests), len(plan))
        yield from map(self._completed, window.unrun())
        for request in plan.too_large:
            error = too_large(request, self.pool.block_size, self.pool.num_blocks)
            yield from map(self._completed, self._answers.fail(request, error))

    def _entered(self, planned: PlannedRequest) -> PlannedRequest:
        """Announce a request to the logits stage when the scheduler takes it."""
        self._sampler.begin(planned.request, planned.begun_token_ids)
        for each in self._by_row:
            each.begin(planned.request)
        return self._answers.begin(planned)

    def _launch(self) -> bool:
        """Launch the next step; return whether its tokens may be read one step late.

        They may not if there was nothing to compute, or if the host needs the tokens at once.
        """
        scheduler = self.scheduler
        speculation = self._speculation
        before = self._in_flight[-1] if self._in_flight else None
        drafts = None if speculation is None else speculation.drafts(knows_tokens=before is None)
        step = scheduler.schedule(drafts)
        if not step.num_chunks and before is not None:  # the step in flight will free blocks
            self.cache.transfer(step.transfers)
            return False
        if not step.num_chunks:
            raise stalled("no sequence can continue", scheduler, self.state())
        result = self._runner.run(step, before)
        self._num_passes += 1
        if not result.states:
            self._store(step)
        num_sequences = len(scheduler.running) + len(scheduler.ending)
        pools = [group.pool for group in scheduler.groups]
        self.statistics.note_step(step.num_tokens, step.num_samples, pools, num_sequences)
        table, grown = scheduler.table, scheduler.update()
        self._in_flight.append(InFlight.launched(result, step, table, grown, self._device))
        is_last = table.num_output_tokens[grown] == table.max_tokens[grown]
        for row_index in grown[is_last].tolist():
            scheduler.retire(scheduler.sequence_at(row_index))
        if self._watch.is_stalled(len(grown)):
            cause = f"no row got a token in {self._watch.num_steps} steps"
            raise stalled(cause, scheduler, self.state())
        return (
            self._device.async_scheduling
            and not (step.drafts or (speculation is not None and speculation.is_due))
            and not table.num_beams[grown].any()
            and not self._sampler.needs_newest_token(step.draws)
        )

    def _read_back(self, step: InFlight) -> Iterator[Completion]:
        """Process the tokens of a step."""
        scheduler, table = self.scheduler, self.scheduler.table
        failed = self._scores.note_step(step)
        is_live, all_drawn = step.is_live(table), step.wait()
        drawn = all_drawn[: len(step.row_indices)]  # without those behind drafts
        is_failed = is_live & (drawn == NO_TOKEN)
        for row_index in step.row_indices[is_failed].tolist():
            failed.append(scheduler.sequence_at(row_index).request)
        if failed:
            is_live &= ~np.isin(table.row[step.row_indices], [request.index for request in failed])
        is_beam = is_live & (table.num_beams[step.row_indices] > 0)
        if is_beam.any():
            is_live &= ~is_beam
            top = step.top_of(is_beam)
            for first, output in self._searches.advance(step.row_indices[is_beam], *top):
                self.statistics.generated_tokens += len(output.token_ids)
                yield from self._collect(first, output)
        self._scores.note_draws(step.step.draws, step.logprobs, drawn, is_live)
        row_indices, positions = step.row_indices[is_live], step.positions[is_live]
        tokens = drawn[is_live]
        table.outputs[row_indices, positions] = tokens
        yield from self._advance(row_indices, positions, tokens)
        for request in {each.index: each for each in failed}.values():
            yield from self._fail(request)
        if self._speculation is not None:
            followed = yield from self._verify(step, all_drawn)
            self._speculation.note_step(
                int(is_live.sum()),
                step.step.num_tokens,
                followed,
                has_prompts=step.step.has_prompts,
            )
            if step.result.states:
                self._predict(step, self._speculation)
                self._store(step.step)

    def _predict(self, step: InFlight, speculation: Speculation) -> None:
        """Apply the MTP module to the tokens of a step, and let it predict the next ones."""
        followed = FollowedStep(step.step, self.scheduler)
        self._runner.follow(step.result, followed.next_ids)
        num_predicted = speculation.num_predicted
        if not (num_predicted and self._runner.keeps_states):
            return
        began, ahead = time.perf_counter(), followed.ahead(num_predicted)
        if len(ahead.uids):
            drafts = self._runner.predict(step.result, ahead)
            speculation.note_predictions(ahead.uids, drafts, time.perf_counter() - began)

    def _store(self, step: StepInput) -> None:
        """Store blocks and states of a step, in which every layer has its keys and values."""
        if self._stored is not None:
            self._stored.note_step(
                step.rows, step.starts, step.ends, step.block_tables, step.write_slots
            )

    def _verify(self, step: InFlight, drawn: Int64s) -> Generator[Completion, None, list[Followed]]:
        """Continue the answers whose drafts are right, all of them by one token at a time.

        drawn: [num_draws] int64, all of the step. Returns the results of the drafts.
        """
        verification = Verification(step.step.drafts, self.scheduler)
        while len(draws := verification.due()):
            tokens, waits = drawn[draws], step.step.draws.waits[draws]
            if waits.any():
                tokens[waits] = self._drawn_late(step, draws[waits])
            yield from self._advance(*verification.append(tokens))
        return verification.all

    def _drawn_late(self, step: InFlight, draws: Int64s) -> Int64s:
        """Draw tokens that had to wait for those before; draws: [num_draws] int64, ascending."""
        all_draws, waiting = step.step.draws, step.result.waiting
        assert waiting is not None, "no draw waits"
        is_due = np.zeros(len(all_draws), dtype=np.bool_)
        is_due[draws] = True
        due, rows = all_draws.part(is_due, 0), (np.cumsum(all_draws.waits) - 1)[draws]
        result = self._sampler.draw(waiting, due, rows, step.step.num_top)
        logprobs = HostLogprobs.of(result.logprobs, self._device)
        tokens: Int64s = self._device.to_host(result.ids).wait().numpy()
        self._scores.note_draws(due, logprobs, tokens, tokens != NO_TOKEN)
        return tokens

    def _advance(
        self, row_indices: Int64s, positions: Int64s, tokens: Int64s
    ) -> Iterator[Completion]:
        """Process the newest tokens of sequences, and the tokens that a grammar forces after them;
        see `_process_tokens`."""
        table = self.scheduler.table
        uids = table.uid[row_indices]
        while len(row_indices):
            yield from self._process_tokens(row_indices, positions, tokens)
            goes_on = table.uid[row_indices] == uids
            row_indices, uids = row_indices[goes_on], uids[goes_on]
            tokens = self._grammars.forced(table.row[row_indices], table.sample[row_indices])
            is_forced = tokens != NO_FORCED_TOKEN
            row_indices, uids, tokens = row_indices[is_forced], uids[is_forced], tokens[is_forced]
            positions = table.num_output_tokens[row_indices]
            table.append_outputs(row_indices, tokens)

    def _speculating(self, asked: str) -> Speculation | None:
        """Return the speculation of a run; none where a draft could not be forgotten, or the bytes
        of a row depend on the other rows of a step."""
        network = self._model.network
        if not can_speculate(
            network,
            self.cache.specs,
            is_row_invariant=self._device.is_row_invariant or self._config.reproducible,
        ):
            return None
        speculation = Speculation.of(
            asked,
            self.scheduler,
            self._grammars.matcher,
            streams=self._model.streamed is not None,
        )
        if speculation is not None and network.has_mtp:
            speculation.use_mtp()
            self._runner.keeps_states = True
        return speculation

    def _process_tokens(
        self, row_indices: Int64s, positions: Int64s, tokens: Int64s
    ) -> Iterator[Completion]:
        """Process the newest tokens of sequences, and finish the sequences that they end.

        row_indices, positions, tokens: [num_tokens] int64 each: index of the sequence in the table,
        position of the token in its answer, token.
        """
        scheduler, table = self.scheduler, self.scheduler.table
        rows, samples = table.row[row_indices], table.sample[row_indices]
        self.statistics.generated_tokens += int((~table.only_scores[row_indices]).sum())
        self._sampler.note_tokens(rows, samples, tokens)
        is_complete = self._grammars.are_complete(rows, samples)
        may_end = is_complete | self._stop_rule.may_end(table, row_indices, positions + 1, tokens)
        for index in np.flatnonzero(may_end).tolist():
            sequence = scheduler.sequence_at(int(row_indices[index]))
            output = self._stop_rule.output(sequence, is_complete=bool(is_complete[index]))
            if output is not None:
                sequence.truncate(int(positions[index]) + 1)
                if self._speculation is not None:
                    self._speculation.note_answer(sequence, output.token_ids)
                scheduler.finish(sequence)
                yield from self._collect(sequence, output)

    def _collect(self, sequence: Sequence, output: SampleOutput) -> Iterator[Completion]:
        """Add an answer; yield the completions if it is the last of its request."""
        request, scores = sequence.request, self._scores
        output = scores.scored(output, request.index)
        answers, more = self._answers.collect(request, output, sequence.num_cached_tokens)
        if more is not None:
            self.scheduler.again.append(more)
        completed = [scores.completed(each, request.index) for each in answers]
        return map(self._completed, completed)

    def _fail(self, request: Request) -> Iterator[Completion]:
        """End all samples of a request whose logits allow no token."""
        self.scheduler.fail(request)
        error = self._grammars.error(request.index) or no_token_error(request.params)
        return map(self._completed, self._answers.fail(request, error))

    def _completed(self, completion: Completion) -> Completion:
        self._num_finished += 1
        for each in (self._sampler, *self._by_row):
            each.end(completion.request.index)
        self.statistics.note_completion(completion)
        if completion.is_duplicate and completion.error is None:
            self.scheduler.counts.prompt_tokens += completion.num_cached_tokens
            self.scheduler.counts.cached_tokens += completion.num_cached_tokens
        self._recorder.note_completion(completion)
        return completion

    def _record_step(self) -> None:
        scheduler, pool, statistics = self.scheduler, self.pool, self.statistics
        self._num_steps += 1
        self._recorder.note_step(self._num_steps, statistics.run_s)
        wanted = statistics.timeline.wants(self._num_steps)
        if not wanted and self._hooks.on_step is None:
            return
        record = StepRecord.of(
            pool,
            scheduler.counts,
            t=statistics.run_s,
            step=self._num_steps,
            running=len(scheduler.running),
            waiting=scheduler.num_planned + len(scheduler.again) + len(scheduler.waiting),
            finished=self._num_finished,
            total=self._num_total,
            generated_tokens=statistics.generated_tokens,
            prompt_tokens_left=scheduler.num_prompt_tokens_left,
            all_prompt_tokens=self._num_prompt_tokens,
        )
        if self._read_before is not None:
            reads = self._reads()
            record = replace(record, bytes_read=reads.num_bytes, wait_s=reads.wait_s)
        if self._speculation is not None:
            record = replace(record, accepted_drafts=self._speculation.num_accepted)
        if wanted:
            statistics.timeline.add(record.step, record)
        if self._hooks.on_step is not None:
            self._hooks.on_step(record)

    @property
    def attention_reads(self) -> AttentionReads:
        """Bytes read by attention so far."""
        return self._runner.reads

    @property
    def captured_shapes(self) -> list[GraphShape]:
        """Shapes of captured decode steps, in the order of capture."""
        return self._runner.captured_shapes

    def state(self) -> dict[str, object]:
        """Return running and waiting sequences and their blocks; may be called from any thread."""
        return engine_state(self.scheduler, self._num_steps, self._num_finished)

    def report(self) -> EngineReport:
        """Return the memory report so far; the job adds `rows`."""
        counted, reads, stored = self.statistics, self.attention_reads, self._stored
        report = memory_report(
            attention_bytes=(reads.num_bytes, reads.num_bytes_without_sharing),
            statistics=counted,
            scheduler=self.scheduler.counts,
            pool=self.pool.counts,
            times=self._times,
            memory=self._ledger.report(
                [group.pool.counts.peak_held for group in self.scheduler.groups],
                self.scheduler.states.peak_slots,
                counted.max_step_tokens,
                counted.max_step_logits,
            ),
            weights=self._ledger.weights,
            device=self._device.torch_device.type,
            config=self._config.described(),
            found_in_store=0 if stored is None else stored.achievable_tokens,
        )
        if stored is not None:
            report["prefix_store"] = stored.figures.copy()
        if states := self.cache.states:
            report["states"] = self.scheduler.states.figures(states.bytes_per_slot)
        if self._model.library is not None:
            report["library"] = self._model.library
        if self._speculation is not None:
            report["speculation"] = self._speculation.figures
        if self._model.streamed is not None:
            self._add_reads(report, self._model.streamed)
        return report

    def _add_reads(self, report: EngineReport, streamed: StreamedWeights) -> None:
        """Add passes, bytes and waiting of streamed weights to a report."""
        residency, on_host = streamed.residency, streamed.on_host
        reads, weights = self._reads(), report["weights"]
        weights["resident_bytes"] -= residency.ring_bytes
        weights["streamed_bytes"] = residency.pass_bytes
        weights["passes"], weights["bytes_read"] = self._num_passes, reads.num_bytes
        weights["wait_share"] = min(reads.wait_s / max(self.statistics.run_s, 1e-9), 1.0)
        report["streaming"] = {
            "pinned_bytes": residency.pinned_bytes,
            "ring_bytes": residency.ring_bytes,
            "read_s": reads.read_s,
            "wait_s": reads.wait_s,
            "layers": residency.letters,
        }
        if on_host is not None:
            report["streaming"]["host_bytes"] = on_host.pinned_bytes + on_host.ring_bytes

    def _reads(self) -> ReadFigures:
        """Return the reads of streamed weights so far."""
        streamed = self._model.streamed
        if streamed is None or self._read_before is None:
            return ReadFigures()
        return streamed.figures.since(self._read_before)

    def snapshot(self) -> Snapshot:
        """Return the block history so far."""
        return self._recorder.snapshot(self.statistics.bytes_per_token)


def state_pool(cache: KVCache) -> StatePool | None:
    """Return that of the states, None if there are none."""
    states = cache.states
    if states is None:
        return None
    return StatePool.of(*states.num_slots, whole_prompts=isinstance(states, OpaqueStates))
