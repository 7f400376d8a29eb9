"""ReplicaRun: the driver's loop. Assigns units, handles events, yields new completions."""

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np

from pagedrun.paged.metrics.report_sections import EngineReport
from pagedrun.paged.metrics.snapshot import Snapshot
from pagedrun.paged.metrics.timeline import ReplicaState, ReplicatedStep, RunHooks
from pagedrun.paged.planning.duplicates import fan_out
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.plan_part import PlanPart
from pagedrun.paged.planning.pool_sizing import too_large
from pagedrun.paged.planning.units import unit_cuts
from pagedrun.paged.planning.windows import BackgroundPlanner, PlannedWindow
from pagedrun.paged.replicas.merged_report import (
    ReplicaCounts,
    merged_record,
    merged_report,
    replica_states,
)
from pagedrun.paged.replicas.replica_messages import (
    Answered,
    Begun,
    Died,
    Ended,
    Failed,
    Offered,
    ReplicaEvent,
    RunTerms,
    Tick,
)
from pagedrun.paged.replicas.replica_set import Replica, ReplicaSet, Stage
from pagedrun.paged.replicas.unit_queue import (
    MAX_DEATHS,
    MAX_DEATHS_A_REPLICA,
    UnitQueue,
)
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import EngineError, RowError
from pagedrun.paged.values.request import Completion, Request

STEP_SECONDS = 0.1  # between two records of the run
STATE_SECONDS = 0.5  # between two updates of the states of replicas
END_SECONDS = 5.0  # for replicas to send their reports


class OpenWindow:
    """Unanswered requests of a plan."""

    def __init__(self, plan: Plan) -> None:
        whole = plan.part(0, len(plan))
        hits = plan.num_hit_tokens.tolist()
        self._plan = plan
        self._requests = {request.index: request for request in whole.requests}
        self._asked = dict(plan.duplicates.asked)
        self.rows = tuple(self._requests)  # in run order
        self._num_planned = dict(zip(self.rows, hits, strict=True))

    def units(self, cuts: Seq[int]) -> Iterator[tuple[Seq[int], Seq[int]]]:
        """Yield rows and positions of each unit; cuts: begin of each unit, and end of the last."""
        for begin, end in pairwise(cuts):
            yield self.rows[begin:end], range(begin, end)

    def part(self, positions: Seq[int]) -> PlanPart:
        """Return the rows at some positions of the run order, for a replica."""
        return self._plan.part_at(np.array(positions, np.int64))

    def answer(self, found: Completion) -> Iterator[Completion]:
        """Yield the completions of an answered row and its duplicates, with the original request.

        The number of cached tokens is that of the plan: the number a replica found varies, and must
        not change the bytes of the row.
        """
        request = self._requests.pop(found.request.index)
        num_planned = self._num_planned.pop(request.index)
        counts = found.error is None and found.prompt_logprobs is None and not found.scores
        found = replace(
            found,
            request=request,
            num_cached_tokens=num_planned if counts else found.num_cached_tokens,
        )
        asked = self._asked.pop(request.index, ())
        yield from fan_out(found, asked) if asked else (found,)

    def fail(self, row: int, error: RowError) -> Iterator[Completion]:
        """Yield the completions of a row without an answer and of its duplicates."""
        request = self._requests.pop(row)
        del self._num_planned[row]
        yield from fan_out(Completion(request, error=error), self._asked.pop(row, ()))

    def refuse(self, request: Request, error: RowError) -> Iterator[Completion]:
        """Yield the completions of a request that is not in the run order."""
        yield from fan_out(Completion(request, error=error), self._asked.pop(request.index, ()))


class ReplicaRun:
    """Planned windows of requests, run by replicas. Iterate it once; implements `RunLike`."""

    def __init__(
        self,
        replicas: ReplicaSet,
        config: EngineConfig,
        windows: Iterator[PlannedWindow[Plan]],
        terms: RunTerms,
        hooks: RunHooks,
        load_s: float,
        ends_at: float | None = None,
    ) -> None:
        """Run the windows with the replicas that are ready or become ready.

        load_s: seconds that these took to load. ends_at: time after which no row is started
        (`time.monotonic`).
        """
        self._replicas = replicas
        self._config = config
        self._windows = windows
        self._terms = terms
        self._hooks = hooks
        self._load_s = load_s
        self._ends_at = ends_at
        self._queue = UnitQueue(replicas.pool.num_wanted)
        self._open: dict[int, OpenWindow] = {}  # by number
        self._of_row: dict[int, int] = {}  # row → its window's number
        self._num_windows = self._num_records = self._last_step = 0
        self._is_last = False
        self._joined: set[int] = set()
        self._first_cause: str | None = None
        self.counts = ReplicaCounts()
        self.is_cut = False
        self._states: tuple[ReplicaState, ...] = ()
        self._states_at = 0.0
        self._began = self._reported = time.perf_counter()

    def __iter__(self) -> Iterator[Completion]:
        """Yield one completion per request, as they finish."""
        self._began = time.perf_counter()
        yield from self._take_windows()
        for member in list(self._replicas.members.values()):
            if member.stage is Stage.READY:
                self._join(member)
        while not self._queue.is_over and not self.is_cut:
            self._hand_out()
            for number, event in self._replicas.receive():
                yield from self._heard(self._replicas.members[number], event)
            yield from self._take_windows()
            self._note_state()
        self._end()

    def close(self) -> None:
        """Stop the planning of further windows, and end the replicas."""
        if isinstance(self._windows, BackgroundPlanner):
            self._windows.close()
        self._replicas.pool.close()

    def report(self) -> EngineReport:
        """Return the report so far, of all replicas together and of each."""
        members = list(self._replicas.members.values())
        return merged_report(members, self.counts, self._load_s, asdict(self._config))

    def state(self) -> dict[str, object]:
        """Return the state of each replica; may be called from any thread."""
        return {
            "rows_finished": self.counts.num_finished,
            "units_waiting": self._queue.num_waiting,
            "replicas": [
                {
                    "number": each.number,
                    "node": each.node,
                    "stage": each.stage.value,
                    "steps": 0 if each.record is None else each.record.step,
                    "running": 0 if each.record is None else each.record.running,
                    "silent_s": each.silent_s,
                    "stuck_s": each.stuck_s,
                    "cause": each.cause,
                }
                for each in list(self._replicas.members.values())
            ],
        }

    def snapshot(self) -> dict[int, Snapshot]:
        """Return the block history of each replica that lived to the end."""
        members = self._replicas.members.values()
        found = {each.number: each.ended.snapshot for each in members if each.ended is not None}
        return {number: each for number, each in found.items() if each is not None}

    # ── Windows ─────────────────────────────────────────────────────────────────────────────────

    def _take_windows(self) -> Iterator[Completion]:
        """Add the next planned window when few units are waiting; wait for it if no replica has
        work."""
        while not self._is_last and self._queue.num_waiting < self._replicas.pool.num_wanted:
            is_ready = not isinstance(self._windows, BackgroundPlanner) or self._windows.is_ready
            if self._of_row and not is_ready:
                return
            window = next(self._windows, None)
            if window is None:
                self._is_last = True
                self._queue.end()
            else:
                yield from self._begin(window)

    def _begin(self, window: PlannedWindow[Plan]) -> Iterator[Completion]:
        number, plan = self._num_windows, window.plan
        self._num_windows += 1
        if number and self._hooks.on_window is not None:
            self._hooks.on_window()
        counts = self.counts
        counts.plan_s += window.plan_s
        counts.num_total += len(window)
        counts.note_sharing(plan.sharing)
        counts.prompt_tokens += plan.num_prompt_tokens
        opened = OpenWindow(plan)
        yield from map(self._completed, window.unrun())
        for request in plan.too_large:
            error = too_large(request, self._config.block_size, self._replicas.max_blocks)
            yield from map(self._completed, opened.refuse(request, error))
        if opened.rows:
            self._open[number] = opened
            self._of_row |= dict.fromkeys(opened.rows, number)
            has_next = isinstance(
                self._windows, BackgroundPlanner
            )  # unknown in advance for the last one
            cuts = unit_cuts(plan.tree.common, self._replicas.pool.num_wanted, has_next=has_next)
            self._queue.add(number, opened.units(cuts.tolist()))

    # ── Replicas ────────────────────────────────────────────────────────────────────────────────

    def _hand_out(self) -> None:
        for member in self._replicas.running:
            while (unit := self._queue.next(member.number)) is not None:
                part = self._open[unit.window].part(unit.positions)
                self._replicas.pool.feed(member.number, unit.number, part)
            if not self._queue.num_open(member.number):
                member.stuck_s = 0.0  # idle

    def _heard(self, member: Replica, event: ReplicaEvent) -> Iterator[Completion]:
        number = member.number
        match event:
            case Answered(completions):
                for each in completions:
                    yield from self._answered(member, each)
            case Begun(unit):
                self._queue.begin(number, unit)
            case Tick():
                self._reported = 0.0  # record the new state
            case Offered(offer):
                refusal = self._replicas.admits(member, offer)
                if refusal is None:
                    self._join(member)
                else:
                    self._replicas.pool.kill(number)
                    member.stage, member.cause = Stage.GONE, refusal
                    self._warn(f"the replica on {member.node} is refused: {refusal}")
            case Ended():
                self._note_end(member, event)
                self.is_cut = self.is_cut or not self._replicas.running
            case Died(cause) | Failed(message=cause):
                yield from self._died(member, cause)

    def _answered(self, member: Replica, completion: Completion) -> Iterator[Completion]:
        row = completion.request.index
        if not self._queue.answer(member.number, row):
            self.counts.num_twice += 1
            return
        member.num_rows += 1
        number = self._of_row.pop(row)
        yield from map(self._completed, self._open[number].answer(completion))
        if not self._queue.num_left(number):
            self._remove_answered_windows()

    def _join(self, member: Replica) -> None:
        """Assign units to a ready replica from now on."""
        left = None if self._ends_at is None else self._ends_at - time.monotonic()
        terms = RunTerms(self._terms.demand, self._terms.reserved_len, left)
        self._replicas.pool.begin(member.number, terms)
        self._queue.join(member.number)
        self._joined.add(member.number)
        member.stage, member.joined_s = Stage.RUNNING, self._elapsed

    def _died(self, member: Replica, cause: str) -> Iterator[Completion]:
        """Reassign the rows of a dead replica; yield the completions of rows that are given up."""
        member.left_s = self._elapsed
        self._first_cause = self._first_cause or cause
        self.counts.num_deaths += 1
        where = f" on {member.node}" if member.node else ""
        given_up: list[int] = []
        if member.number in self._joined:
            given_up = self._queue.died(member.number)
        self._warn(f"replica {member.number}{where} died ({cause}); its rows go to others")
        for row in given_up:
            self.counts.num_given_up += 1
            error = RowError(
                "replica_died",
                f"two replicas died that were computing only this row; cause of the last: {cause}",
            )
            yield from map(self._completed, self._window_of(row).fail(row, error))
        self._remove_answered_windows()
        most = MAX_DEATHS + MAX_DEATHS_A_REPLICA * self._replicas.pool.num_wanted
        if self._queue.is_lost or self.counts.num_deaths > most:
            raise EngineError(
                f"{self.counts.num_deaths} replicas died; cause of the first: {self._first_cause}"
            )
        if not self._queue.is_over:
            self._replicas.ask()

    def _end(self) -> None:
        """End all replicas, and collect their reports.

        The run time ends with the last row, as that of one engine.
        """
        self.counts.run_s = self._elapsed
        for member in self._replicas.running:
            self._replicas.pool.end(member.number)
        ends_at = time.perf_counter() + END_SECONDS
        while self._replicas.running and time.perf_counter() < ends_at:
            for number, event in self._replicas.receive():
                if isinstance(event, Ended):
                    self._note_end(self._replicas.members[number], event)

    def _note_end(self, member: Replica, ended: Ended) -> None:
        member.ended, member.stage, member.left_s = ended, Stage.GONE, self._elapsed

    # ── Rows ────────────────────────────────────────────────────────────────────────────────────

    def _window_of(self, row: int) -> OpenWindow:
        """Return the window of a row, which is answered now."""
        return self._open[self._of_row.pop(row)]

    def _remove_answered_windows(self) -> None:
        """Remove windows without open rows."""
        for number in [each for each in self._open if not self._queue.num_left(each)]:
            del self._open[number]

    def _completed(self, completion: Completion) -> Completion:
        self.counts.note_completion(completion)
        return completion

    def _note_state(self) -> None:
        """Record the state of the run, at most every `STEP_SECONDS`, while there are replicas."""
        now = time.perf_counter()
        self.counts.run_s = now - self._began
        if now - self._reported < STEP_SECONDS or not self._replicas.num_there:
            return
        self._reported = now
        members = self._replicas.members.values()
        record = merged_record(members, self.counts)
        if record.step > self._last_step:  # a timeline's steps rise
            self._last_step = record.step
            self._num_records += 1
            self.counts.timeline.add(self._num_records, record)
        if self._hooks.on_step is not None:
            if now - self._states_at >= STATE_SECONDS:
                self._states_at = now
                self._states = replica_states(members, self._queue.num_open)
            self._hooks.on_step(ReplicatedStep.with_replicas(record, self._states))

    def _warn(self, message: str) -> None:
        if self._hooks.warn is not None:
            self._hooks.warn(message)

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self._began
