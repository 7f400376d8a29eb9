"""The driver's loop, with replicas that are threads."""

import random
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock

import pytest

from pagedrun.paged.metrics.timeline import ReplicatedStep, RunHooks, StepRecord
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.replicas.replica_engine import ReplicaEngine
from pagedrun.paged.replicas.replica_messages import VERSION
from pagedrun.paged.replicas.replica_set import ReplicaSet
from pagedrun.paged.values.engine_config import Deadline, EngineConfig
from pagedrun.paged.values.errors import EngineError, RowError, UsageError
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.replicas.thread_pool import BASIS, CUT_AFTER, Fatal, OnRow, ScriptedEngine, ThreadPool

CONFIG = EngineConfig(model=Path("model"), block_size=4)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=2)


def requests(count: int, params: SamplingParams = SAMPLED, first: int = 0) -> list[Request]:
    """Rows in groups of eight with a common prefix, in no order."""
    indices = list(range(first, first + count))
    random.Random(count).shuffle(indices)
    groups = dict(zip(indices, (place // 8 for place in range(count)), strict=True))
    return [
        Request(index, (*[1 + groups[index] % 150] * 9, 1 + index % 190), params)
        for index in range(first, first + count)
    ]


def engine(pool: ThreadPool, stall_timeout_s: float = 0.0) -> ReplicaEngine:
    return ReplicaEngine(CONFIG, ReplicaSet(pool, stall_timeout_s))


def answers(completions: Iterable[Completion]) -> dict[int, list[str]]:
    """Return the texts by index; none is answered twice."""
    found: dict[int, list[str]] = {}
    for each in completions:
        assert each.request.index not in found
        assert each.error is None
        found[each.request.index] = [output.text for output in each.outputs]
    return found


def expected(*windows: list[Request]) -> dict[int, list[str]]:
    """Return what one engine would answer, of a plan of each window."""
    found: dict[int, list[str]] = {}
    after = None
    for rows in windows:
        plan = Plan(
            rows, PlanRules(CONFIG.block_size, read_once=BASIS.rules.read_once), after=after
        )
        after = plan.end
        for planned in plan:
            request = planned.request
            text = f"{sum(request.prompt_token_ids)}:{planned.num_read_once_tokens}:{planned.place}"
            found[request.index] = [f"{text}:{sample}" for sample in range(request.params.n)]
    return found


@pytest.mark.invariant("same decisions with any number of replicas")
@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_what_the_plan_of_all_rows_decided_reaches_each_of_them_once(num_replicas: int) -> None:
    rows = requests(500)
    pool = ThreadPool(num_replicas)
    run = engine(pool).start(rows)
    assert answers(run) == expected(rows)
    report = run.report()
    assert sum(each["rows"] for each in report["replicas"]) == len(rows)
    run.close()
    assert pool.is_closed


def test_the_timeline_rises_and_a_listener_is_told_what_each_replica_is_at() -> None:
    rows, told = requests(300), list[StepRecord]()
    pause = lambda number, row: time.sleep(0.004)  # noqa: E731
    run = engine(ThreadPool(2, lambda number: ScriptedEngine(number, pause))).start(
        rows, hooks=RunHooks(told.append)
    )
    assert answers(run) == expected(rows)
    steps = [each["step"] for each in run.report()["timeline"]]
    assert steps == sorted(set(steps))
    states = [each.replicas for each in told if isinstance(each, ReplicatedStep)]
    assert len(states) == len(told)
    assert [[each.number for each in some] for some in states[-1:]] == [[0, 1]]
    assert any("rows left" in each.at for some in states for each in some)
    assert max(each.rows for some in states for each in some) > 0
    run.close()


def test_each_of_several_windows_is_answered_and_said_to_begin() -> None:
    windows = [requests(90, first=90 * place) for place in range(4)]
    begun: list[int] = []
    run = engine(ThreadPool(2)).start(
        windows[0], more=windows[1:], hooks=RunHooks(on_window=lambda: begun.append(1))
    )
    assert answers(run) == expected(*windows)
    assert len(begun) == 3
    run.close()


def test_rows_that_ask_the_same_are_computed_once_and_answered_each() -> None:
    greedy = SamplingParams(max_tokens=2)
    rows = [
        Request(0, (5, 6, 7), greedy),
        Request(1, (5, 6, 7), replace(greedy, n=3)),
        Request(2, (8, 9), replace(greedy, n=2)),
    ]
    computed: list[int] = []
    pool = ThreadPool(1, lambda number: ScriptedEngine(number, lambda _, row: computed.append(row)))
    run = engine(pool).start(rows)
    found = answers(run)
    assert sorted(computed) == [0, 2]
    assert [len(found[index]) for index in range(3)] == [1, 3, 2]
    assert len(set(found[0] + found[1])) == 1
    assert run.report()["prefix"].get("duplicate_rows") == 1
    run.close()


def dying(when: dict[int, int], poison: frozenset[int] = frozenset()) -> OnRow:
    """Return what ends a replica, by its number, before so many rows, and any at a poison row."""
    left = dict(when)
    lock = Lock()

    def on_row(number: int, row: int) -> None:
        with lock:
            if row in poison:
                raise Fatal
            if number in left:
                left[number] -= 1
                if left[number] < 0:
                    raise Fatal

    return on_row


@pytest.mark.parametrize("seed", range(10))
def test_no_row_is_lost_or_answered_twice_when_replicas_die(seed: int) -> None:
    drawn = random.Random(seed)
    rows = requests(400)
    # Two deaths at most, each with many rows left: no row can be alone when a second one comes.
    on_row = dying({number: drawn.randrange(60) for number in range(2)})
    pool = ThreadPool(3, lambda number: ScriptedEngine(number, on_row))
    warnings: list[str] = []
    run = engine(pool).start(rows, hooks=RunHooks(warn=warnings.append))
    assert answers(run) == expected(rows)
    died = [each for each in run.report()["replicas"] if "died" in each]
    assert died
    assert len([told for told in warnings if "died" in told]) == len(died)
    run.close()


def test_a_row_that_kills_its_replica_becomes_an_error_and_no_other_row_does() -> None:
    rows, poison = requests(300), 137
    on_row = dying({}, frozenset({poison}))
    pool = ThreadPool(2, lambda number: ScriptedEngine(number, on_row))
    run = engine(pool).start(rows)
    completions = list(run)
    failed = [each for each in completions if each.error is not None]
    assert [each.request.index for each in failed] == [poison]
    assert failed[0].error is not None
    assert failed[0].error.code == "replica_died"
    wanted = expected(rows)
    del wanted[poison]
    assert answers(each for each in completions if each.error is None) == wanted
    run.close()


def test_replicas_that_all_die_at_once_end_the_job_with_the_first_cause() -> None:
    def on_row(number: int, row: int) -> None:
        raise Fatal

    run = engine(ThreadPool(2, lambda number: ScriptedEngine(number, on_row))).start(requests(200))
    with pytest.raises(EngineError, match="replicas died; cause of the first: ActorDiedError"):
        list(run)
    run.close()


def test_the_rows_of_a_replica_that_falls_silent_go_to_others_and_its_late_answers_count_not() -> (
    None
):
    rows, frozen = requests(300), Event()
    pool = ThreadPool(2)

    def on_row(number: int, row: int) -> None:
        if number == 0 and not frozen.is_set():
            frozen.set()
            pool.freeze(0)

    pool._engine = lambda number: ScriptedEngine(number, on_row)
    run = engine(pool, stall_timeout_s=0.3).start(rows)
    found = iter(run)
    seen = [next(found) for _ in range(1)]
    seen += list(found)
    assert answers(seen) == expected(rows)
    pool.thaw(0)
    run.close()


def test_a_replica_without_steps_is_ended_and_its_rows_go_to_others() -> None:
    rows, never = requests(300), Event()

    def on_row(number: int, row: int) -> None:
        if number == 0:
            never.wait()

    pool = ThreadPool(2, lambda number: ScriptedEngine(number, on_row))
    run = engine(pool, stall_timeout_s=1.5).start(rows)
    assert answers(run) == expected(rows)
    run.close()
    never.set()


def test_a_replica_with_other_weights_is_refused_by_name_before_a_row_is_touched() -> None:
    def unlike(number: int) -> ScriptedEngine:
        return ScriptedEngine(number, fingerprint={"weights": str(number) * 64, "threads": "2"})

    pool = ThreadPool(2, unlike)
    with pytest.raises(UsageError, match=r"node-\d has another weights of the model \("):
        engine(pool).warm_up()
    assert pool.is_closed


def test_replicas_of_another_version_are_refused_even_if_all_of_them_are() -> None:
    def older(number: int) -> ScriptedEngine:
        return ScriptedEngine(number, fingerprint={VERSION: "0.0.1"})

    pool = ThreadPool(2, older)
    with pytest.raises(UsageError, match=r"node-\d has pagedrun 0\.0\.1, and this is "):
        engine(pool).warm_up()
    assert pool.is_closed


def test_a_replica_that_cannot_load_is_refused_with_its_reason() -> None:
    def missing(number: int) -> ScriptedEngine:
        raise UsageError("model is not there")

    with pytest.raises(UsageError, match="node-0 cannot start: model is not there"):
        engine(ThreadPool(1, missing)).warm_up()


@pytest.mark.parametrize("num_lost", [1, 2, 3])
def test_another_one_is_asked_for_where_a_replica_is_lost_while_it_loads(num_lost: int) -> None:
    def lost(number: int) -> ScriptedEngine:
        if number < num_lost:
            raise Fatal
        return ScriptedEngine(number)

    warnings: list[str] = []
    pool = ThreadPool(2, lost)
    if num_lost == 3:
        with pytest.raises(EngineError, match=r"3 replicas died .* cause of the first: ActorDied"):
            engine(pool).warm_up()
        assert pool.is_closed
        return
    run = engine(pool).start(requests(100), hooks=RunHooks(warn=warnings.append))
    assert answers(run) == expected(requests(100))
    assert len([told for told in warnings if "before it had loaded" in told]) == num_lost
    run.close()


def test_the_smallest_pool_decides_which_rows_are_too_large() -> None:
    def small(number: int) -> ScriptedEngine:
        rules = replace(BASIS.rules, max_blocks=4 if number else 64)
        return ScriptedEngine(number, basis=replace(BASIS, rules=rules))

    rows = [*requests(20), Request(20, tuple(range(1, 31)), SAMPLED)]
    run = engine(ThreadPool(2, small)).start(rows)
    failed = [each for each in run if each.error is not None]
    assert [each.request.index for each in failed] == [20]
    assert isinstance(failed[0].error, RowError)
    assert "the pool has 4" in failed[0].error.message
    run.close()


def test_blocks_are_as_large_as_the_replicas_fit_them_to_their_devices() -> None:
    with_default = ReplicaEngine(replace(CONFIG, block_size=16), ReplicaSet(ThreadPool(2), 0.0))
    run = with_default.start(requests(40))
    assert answers(run) == expected(requests(40))
    assert with_default.config.block_size == BASIS.rules.block_size == 4
    run.close()


def test_a_run_goes_on_with_what_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedrun.paged.replicas.replica_set.PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr("pagedrun.paged.replicas.replica_worker.TICK_SECONDS", 0.01)
    warnings: list[str] = []
    pool = ThreadPool(3, has_room=lambda number: number == 0)
    run = engine(pool).start(requests(200), hooks=RunHooks(warn=warnings.append))
    assert answers(run) == expected(requests(200))
    assert warnings == ["there is room for 1 of 3 replicas; the others join when there is more"]
    run.close()


def test_a_replica_that_comes_late_takes_part_unless_it_is_unlike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pagedrun.paged.replicas.replica_set.PATIENCE_SECONDS", 0.05)
    goes_on, is_refused, warnings = Event(), Event(), list[str]()

    def on_row(number: int, row: int) -> None:
        (is_refused if number else goes_on).wait()

    def warn(message: str) -> None:
        warnings.append(message)
        if "node-1 is refused" in message:
            is_refused.set()

    def made(number: int) -> ScriptedEngine:
        weights = "b" if number == 1 else "a"
        return ScriptedEngine(number, on_row, fingerprint={"weights": weights * 64})

    pool = ThreadPool(3, made, has_room=lambda number: number == 0)
    run = engine(pool).start(requests(300), hooks=RunHooks(warn=warn))
    pool.place(1)
    pool.place(2)
    found = iter(run)
    seen = [next(found)]  # of the one that came late: the first waits
    goes_on.set()
    seen += list(found)
    assert answers(seen) == expected(requests(300))
    assert any("node-1 is refused: it has another weights" in told for told in warnings)
    run.close()


def test_a_run_with_a_deadline_ends_with_the_rows_that_are_done() -> None:
    run = engine(ThreadPool(2)).start(requests(500), deadline=Deadline(time.monotonic() + 9e4, 1))
    found = answers(run)
    assert run.is_cut
    assert len(found) == 2 * CUT_AFTER
    run.close()


def test_a_job_that_is_closed_in_the_middle_ends_its_replicas() -> None:
    pool = ThreadPool(2)
    run = engine(pool).start(requests(300))
    next(iter(run))
    run.close()
    assert pool.is_closed
    assert run.report()["kv"]["num_blocks"] == 0  # nobody has told
