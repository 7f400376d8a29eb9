"""An engine without a model: the planner, scheduler and block pool of every run, on the fake model
of their own tests; and an encoder whose vectors follow from their texts."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.cache.block_pool import SwapSpace
from pagedrun.paged.job.interfaces import ModelOpener
from pagedrun.paged.job.open_model import PooledFolder
from pagedrun.paged.metrics.report_sections import EngineReport, empty_engine_report
from pagedrun.paged.metrics.timeline import NO_HOOKS, RunHooks
from pagedrun.paged.planning.duplicates import OutputCollector
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.plan_part import EarlierAnswers
from pagedrun.paged.planning.planner import Planner, RequestLimits
from pagedrun.paged.planning.pool_sizing import too_large
from pagedrun.paged.planning.windows import BackgroundPlanner, PlannedWindow
from pagedrun.paged.scheduling.admission_policy import OutputLengthPredictor
from pagedrun.paged.scheduling.kv_groups import GroupPool
from pagedrun.paged.scheduling.scheduler import Scheduler, SchedulerLimits
from pagedrun.paged.scheduling.sequence import Sequence as Running
from pagedrun.paged.scheduling.sequence_table import SequenceTable
from pagedrun.paged.values.engine_config import Deadline, PreemptionMode
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from tests.support.fake_model import EOS, FakeModel, RecordingPool, answer, is_done
from tests.support.scripted_model import ScriptedModel
from tests.support.step import Step

MAX_LEN = 64


@dataclass(frozen=True, slots=True)
class Pool:
    """Settings of a run that may change no answer."""

    block_size: int = 4
    num_blocks: int = 40
    swap_blocks: int = 4
    max_num_seqs: int = 4
    step_tokens: int = 32
    mode: PreemptionMode = PreemptionMode.SWAP
    prefix_caching: bool = True


def output_of(request: Request, sample: int, token_ids: Sequence[int]) -> SampleOutput:
    """Return a sample: a letter for each token."""
    ended = token_ids[-1] == EOS
    text = "".join("ABCDEFG"[each] for each in token_ids)
    reason = FinishReason.STOP if ended else FinishReason.LENGTH
    return SampleOutput(sample, text, tuple(token_ids), reason)


def right_outputs(request: Request) -> list[SampleOutput]:
    """Return the samples that a request must get, without any engine; greedy ones are alike."""
    samples = [0 if request.params.is_greedy else each for each in range(request.params.n)]
    answers = [answer(request, sample) for sample in samples]
    return [output_of(request, number, each) for number, each in enumerate(answers)]


class Optimist(OutputLengthPredictor):
    """Takes every answer to be about to end, so that the pool becomes too small."""

    def expected_outputs(self, table: SequenceTable, row_indices: Int64s) -> Int64s:
        return table.num_output_tokens[row_indices] + 1


class SimulatedRun:
    """Run of planned windows; implements `interfaces.RunLike`."""

    is_cut = False

    def __init__(
        self,
        windows: Iterator[PlannedWindow[Plan]],
        pool: Pool,
        failing: Container[int],
        hooks: RunHooks,
    ) -> None:
        self._windows = windows
        self._failing = failing
        self._on_window = hooks.on_window or (lambda: None)
        self._pool = RecordingPool(pool.num_blocks, pool.block_size)
        self._scheduler = Scheduler(
            [GroupPool(self._pool, SwapSpace(pool.swap_blocks), None)],
            SchedulerLimits(pool.max_num_seqs, pool.step_tokens, 0.0, staggers=False),
            pool.mode,
            prefix_caching=pool.prefix_caching,
            predictor=Optimist(),
        )
        self._model = FakeModel(self._pool)
        self._answers = OutputCollector()
        self.answered: list[int] = []
        self.num_preemptions = 0

    def __iter__(self) -> Iterator[Completion]:
        for completion in self._completions():
            self.answered.append(completion.request.index)
            yield completion
        scheduler = self._scheduler
        self.num_preemptions = sum(scheduler.counts.preemptions.values())
        self._pool.check([])
        assert self._pool.num_free == self._pool.num_blocks, "blocks are leaked"
        assert scheduler.swap_space.num_free == scheduler.swap_space.num_blocks

    def _completions(self) -> Iterator[Completion]:
        scheduler, is_first = self._scheduler, True
        while True:
            while scheduler.is_out and (window := next(self._windows, None)) is not None:
                if not is_first:
                    self._on_window()
                is_first = False
                yield from self._begin(window)
            if scheduler.is_out:
                scheduler.end_plan()
            if not scheduler.has_work:
                return
            scheduler.begin_step()
            step = Step.of(scheduler.schedule(), scheduler)
            assert step.chunks, "no sequence can go on"
            tokens = self._model.run(step)
            grown = scheduler.update(np.array(tokens, dtype=np.int64))
            yield from self._ended(grown)
            scheduler.check()

    def _begin(self, window: PlannedWindow[Plan]) -> Iterator[Completion]:
        plan = window.plan
        self._answers.expect(plan.duplicates.asked)
        self._scheduler.add(map(self._answers.begin, plan), len(plan))
        yield from window.unrun()
        for request in plan.too_large:
            error = too_large(request, self._pool.block_size, self._pool.num_blocks)
            yield from self._answers.fail(request, error)

    def _ended(self, grown: Int64s) -> Iterator[Completion]:
        failed: set[int] = set()
        for sequence in [self._scheduler.sequence_at(place) for place in grown.tolist()]:
            request, tokens = sequence.request, sequence.output_token_ids
            if request.index in failed:
                continue
            if request.index in self._failing:
                failed.add(request.index)
                self._scheduler.fail(request)
                yield from self._answers.fail(request, RowError("nan", "the logits are not finite"))
            elif is_done(request, tokens):
                yield from self._collect(sequence, tokens)

    def _collect(self, sequence: Running, tokens: list[int]) -> Iterator[Completion]:
        request, sample = sequence.request, sequence.sample_index
        self._scheduler.finish(sequence)
        output = output_of(request, sample, tokens)
        completions, more = self._answers.collect(request, output, sequence.num_cached_tokens)
        assert more is None, "no row votes"
        yield from completions

    def close(self) -> None:
        if isinstance(self._windows, BackgroundPlanner):
            self._windows.close()

    def report(self) -> EngineReport:
        return empty_engine_report()

    def state(self) -> dict[str, object]:
        return {}

    def snapshot(self) -> None:
        return None


class SimulatedModel(ScriptedModel):
    """Model and engine of one run; failing: indices of rows whose logits are NaN."""

    vocab_size = 200
    max_position_embeddings = MAX_LEN

    def __init__(self, pool: Pool, failing: Container[int] = frozenset()) -> None:
        super().__init__()
        self._settings = pool
        self._failing = failing
        self.run: SimulatedRun | None = None

    def start(  # type: ignore[override]
        self,
        requests: Sequence[Request],
        *,
        more: Iterable[Sequence[Request]] | None = None,
        done: Container[int] = frozenset(),
        earlier: EarlierAnswers | None = None,
        deadline: Deadline | None = None,
        hooks: RunHooks = NO_HOOKS,
    ) -> SimulatedRun:
        pool = self._settings
        rules = PlanRules(
            pool.block_size, prefix_caching=pool.prefix_caching, max_blocks=pool.num_blocks
        )
        planner = Planner(rules, RequestLimits(MAX_LEN, self.vocab_size), done=done)
        first = planner.window(requests, has_next=more is not None)
        windows: Iterator[PlannedWindow[Plan]] = iter([first])
        if more is not None:
            windows = BackgroundPlanner(first, planner.windows(more))
        self.run = SimulatedRun(windows, pool, self._failing, hooks)
        return self.run


def opener(model: Any) -> ModelOpener:
    """Return the opener of a model that is open."""
    return lambda engine_config, tokenizer_folder, chat_template: model


def right_vector(token_ids: Sequence[int]) -> NDArray[np.float32]:
    """Return the vector of a text."""
    tokens = np.array(token_ids, np.float32)
    return np.array([len(tokens), tokens.sum(), tokens[0], tokens[-1] / 7], np.float32)


def no_texts(texts: Sequence[str], **options: object) -> list[Any]:
    """Encode the texts of rows that have none."""
    assert not texts
    return []


class SimulatedEncoder(PooledFolder):
    """Model and engine of one run of vectors, for rows of token ids."""

    def __init__(self, failing: Container[int] = frozenset()) -> None:
        self._failing = failing
        self.run: SimulatedVectors | None = None
        saved = SimpleNamespace(lowering=None, pairs=None, with_types=False)
        self.config: Any = SimpleNamespace(
            network=SimpleNamespace(embedding=None), vocab_size=200, max_position_embeddings=MAX_LEN
        )
        self.spec: Any = SimpleNamespace(
            config=self.config,
            saved=saved,
            pooler=SimpleNamespace(labels=(), with_prompt=True),
            prompt="",
            max_length=MAX_LEN,
        )
        self.tokenizer: Any = SimpleNamespace(
            chat_template=None, num_special_tokens=lambda of_pair: 0, encode_pairs=no_texts
        )

    def arithmetic(self) -> dict[str, object]:
        return {"device": "script"}

    def load_engine(self) -> "SimulatedEncoder":
        return self

    def warm_up(self, on_compile: Callable[[], None] = lambda: None) -> None:
        """Do nothing."""

    def start(
        self,
        requests: Sequence[Request],
        *,
        more: Iterable[Sequence[Request]] | None = None,
        done: Container[int] = frozenset(),
        earlier: EarlierAnswers | None = None,
        deadline: Deadline | None = None,
        hooks: RunHooks = NO_HOOKS,
    ) -> "SimulatedVectors":
        self.run = SimulatedVectors(requests, more or (), done, self._failing, hooks)
        return self.run


class SimulatedVectors:
    """Run of an encoder; implements `interfaces.RunLike`."""

    is_cut = False

    def __init__(
        self,
        requests: Sequence[Request],
        more: Iterable[Sequence[Request]],
        done: Container[int],
        failing: Container[int],
        hooks: RunHooks,
    ) -> None:
        self._windows = (requests, more)
        self._done = done
        self._failing = failing
        self._on_window = hooks.on_window or (lambda: None)
        self.answered: list[int] = []
        self.num_preemptions = 0

    def __iter__(self) -> Iterator[Completion]:
        first, more = self._windows
        yield from self._answers(first)
        for window in more:
            self._on_window()
            yield from self._answers(window)

    def _answers(self, window: Sequence[Request]) -> Iterator[Completion]:
        left = [request for request in window if request.index not in self._done]
        return map(self._completion, reversed(left))

    def _completion(self, request: Request) -> Completion:
        self.answered.append(request.index)
        if request.index in self._failing:
            return Completion(request, error=RowError("nan", "the vector is not finite"))
        return Completion(request, pooled=right_vector(request.prompt_token_ids)[None])

    def close(self) -> None:
        """Do nothing."""

    def report(self) -> EngineReport:
        return empty_engine_report()

    def state(self) -> dict[str, object]:
        return {}

    def snapshot(self) -> None:
        return None
