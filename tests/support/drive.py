"""A scheduler with its fake model, driven step by step, and requests to drive it with."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.cache.block_pool import BlockPool, SwapSpace, TransferKind
from pagedrun.paged.execution.logits.sampler import NO_TOKEN
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.scheduling.admission_policy import OutputLengthPredictor
from pagedrun.paged.scheduling.kv_groups import GroupPool
from pagedrun.paged.scheduling.scheduler import Scheduler, SchedulerLimits
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import SequenceTable
from pagedrun.paged.scheduling.states import StatePool
from pagedrun.paged.scheduling.step_input import Drafted
from pagedrun.paged.speculation.verification import Verification
from pagedrun.paged.values.engine_config import PreemptionMode
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.fake_model import VOCAB, FakeModel, RecordingPool, answer, is_done
from tests.support.fake_states import FakeStates
from tests.support.step import Step

SWAP, RECOMPUTE = PreemptionMode.SWAP, PreemptionMode.RECOMPUTE


class OneBlockEach(OutputLengthPredictor):
    """The rule of most engines: a free block for each that runs, and preemption after that."""

    def allows(self, pool: BlockPool, table: SequenceTable, places: Int64s, num_taken: int) -> bool:
        return num_taken + len(places) - 1 <= pool.num_free


class Optimist(OutputLengthPredictor):
    """Thinks that everybody is about to end: whoever fits now is let in."""

    def expected_outputs(self, table: SequenceTable, places: Int64s) -> Int64s:
        return table.num_output_tokens[places] + 1


class WorstCase(OutputLengthPredictor):
    """Reserves for everybody what the longest answer takes."""

    def expected_outputs(self, table: SequenceTable, places: Int64s) -> Int64s:
        return table.max_tokens[places]


@dataclass
class FakeDrafts:
    """Drafts of random lengths; behind right ones a few draws give no token, as NaN would.

    right: chance that a draft is right, if those before it are.
    """

    seed: int
    right: float
    most: int = 5

    def __post_init__(self) -> None:
        self._pick = random.Random(self.seed)

    def of(self, sequence: Sequence) -> list[int]:
        """Return what may follow the newest token of a sequence."""
        params, num_outputs = sequence.request.params, sequence.num_output_tokens
        count = min(self._pick.randint(0, self.most), params.max_tokens - num_outputs - 1)
        behind = answer(sequence.request, sequence.sample_index)[num_outputs:]
        found: list[int] = []
        for token in (*behind, *[0] * self.most)[: max(count, 0)]:
            is_right = self._pick.random() < self.right
            found.append(token if is_right else (token + self._pick.randint(1, VOCAB - 1)) % VOCAB)
        return found

    def drawn(self, tokens: Int64s) -> Int64s:
        """Return draws behind right drafts, a few of them without a token."""
        fails = [self._pick.random() < 0.05 for _ in tokens]
        return np.where(fails, NO_TOKEN, tokens)


@dataclass
class Drive:
    """A scheduler, its fake model, and what has come of the requests so far."""

    requests: list[Request]
    block_size: int
    num_blocks: int
    max_num_seqs: int = 8
    budget: int = 64
    mode: PreemptionMode = SWAP
    swap_blocks: int = 8
    prefix_caching: bool = True
    fails_at: dict[int, int] = field(default_factory=dict)  # request index → tokens before NaN
    predictor: OutputLengthPredictor = field(default_factory=OutputLengthPredictor)
    # Blocks by window, of further groups.
    windows: dict[int | None, int] = field(default_factory=dict)
    num_slots: int = 0  # of recurrent layers' states, if there are any
    num_host_slots: int = 0
    min_state_tokens: int = 1
    refill_share: float = 0.0
    staggers: bool = False
    drafts: FakeDrafts | None = None

    def __post_init__(self) -> None:
        self.plan = Plan(
            self.requests,
            PlanRules(
                self.block_size,
                prefix_caching=self.prefix_caching,
                max_blocks=self.num_blocks,
                min_state_tokens=self.min_state_tokens if self.num_slots else None,
            ),
        )
        self.pool = RecordingPool(self.num_blocks, self.block_size)
        self.windowed_pools = [
            RecordingPool(count, self.block_size) for count in self.windows.values()
        ]
        self.slots = [RecordingPool(self.num_slots, 1)] if self.num_slots else []
        self.scheduler = Scheduler(
            [
                GroupPool(pool, SwapSpace(self.swap_blocks), window)
                for pool, window in zip(
                    (self.pool, *self.windowed_pools), (None, *self.windows), strict=True
                )
            ],
            SchedulerLimits(
                self.max_num_seqs, self.budget, self.refill_share, staggers=self.staggers
            ),
            self.mode,
            prefix_caching=self.prefix_caching,
            predictor=self.predictor,
            states=self._state_pool(),
        )
        self.scheduler.add(self.plan, len(self.plan))
        self.model = FakeModel(self.pool)
        self.windowed_models = [
            FakeModel(pool, group, window)
            for group, (pool, window) in enumerate(
                zip(self.windowed_pools, self.windows, strict=True), start=1
            )
        ]
        self.states = [FakeStates(pool, len(self.windows) + 1) for pool in self.slots]
        self.outputs: dict[tuple[int, int], tuple[int, ...]] = {}
        self.failed: set[int] = set()
        self.refused = {request.index for request in self.plan.too_large}
        self.batches: list[Step] = []
        self.num_late_forks = 0  # siblings that found no room beside their parent
        self.num_drafts = self.num_right_drafts = 0

    def _state_pool(self) -> StatePool | None:
        return StatePool(self.slots[0], SwapSpace(self.num_host_slots)) if self.slots else None

    @property
    def accepted(self) -> list[Request]:
        return [request for request in self.requests if request.index not in self.refused]

    def _drafts(self) -> dict[int, list[int]]:
        if self.drafts is None:
            return {}
        running = [each for each in self.scheduler.running if each.num_output_tokens]
        return {each.row_index: self.drafts.of(each) for each in running}

    def _verify(self, drafted: tuple[Drafted, ...], tokens: Int64s) -> None:
        """Continue answers through their right drafts, as a run does."""
        verification = Verification(drafted, self.scheduler)
        while len(due := verification.due()):
            assert self.drafts is not None
            row_indices, *_ = verification.append(self.drafts.drawn(tokens[due]))
            self.scheduler.check()
            for sequence in list(map(self.scheduler.sequence_at, row_indices.tolist())):
                self._collect(sequence)
        self.num_drafts += sum(len(each.tokens) for each in drafted)
        self.num_right_drafts += sum(each.num_stored for each in verification.all)

    def step(self) -> Step:
        scheduler = self.scheduler
        oldest = scheduler.running[0] if scheduler.running else None
        batch = Step.of(scheduler.schedule(self._drafts()), scheduler)
        scheduler.check()
        self.batches.append(batch)
        assert batch.chunks, "no sequence can go on"
        assert batch.input.num_tokens <= self.budget
        assert len(scheduler.running) <= self.max_num_seqs
        assert oldest is None or scheduler.running[0] is oldest, "the oldest was preempted"
        for chunk in batch.chunks:
            sequence, num_drafts = chunk.sequence, len(chunk.drafts)
            assert chunk.start < chunk.end <= sequence.num_tokens + num_drafts
            assert sequence.num_computed_tokens == chunk.end - num_drafts
            assert chunk.samples == (chunk.end == sequence.num_tokens + num_drafts)
        waiting = len(scheduler.waiting)
        tokens = self.model.run(batch)
        for model in self.windowed_models:
            assert model.run(batch) == tokens
        for states in self.states:
            states.run(batch)
        drawn = np.array(tokens, dtype=np.int64)
        num_drafts = sum(len(each.tokens) for each in batch.input.drafts)
        grown = scheduler.update(drawn[: len(drawn) - num_drafts])
        self.num_late_forks += len(scheduler.waiting) - waiting
        scheduler.check()
        for sequence in [scheduler.sequence_at(place) for place in grown.tolist()]:
            self._collect(sequence)
        scheduler.check()
        self._verify(batch.input.drafts, drawn)
        scheduler.check()
        return batch

    def _collect(self, sequence: Sequence) -> None:
        request, output = sequence.request, sequence.output_token_ids
        if request.index in self.failed:
            return
        if self.fails_at.get(request.index) == len(output):
            self._fail(request)
        elif is_done(request, output):
            self.scheduler.finish(sequence)
            key = request.index, sequence.sample_index
            assert key not in self.outputs, "a sample finished twice"
            self.outputs[key] = tuple(output)

    def _fail(self, request: Request) -> None:
        """End a request whose logits are NaN, in whatever state its samples are."""
        self.failed.add(request.index)
        self.scheduler.fail(request)

    def finish(self) -> "Drive":
        """Run to the end and check everything that holds of any run."""
        # The oldest sequence is never preempted and computes a token in every step.
        bound = sum(
            (len(r.prompt_token_ids) + r.params.max_tokens) * r.params.n for r in self.accepted
        )
        while self.scheduler.has_work:
            self.step()
            assert len(self.batches) <= bound, "the run does not end"
        self._check_outputs()
        self._check_counts()
        self._check_all_given_back()
        return self

    def _check_outputs(self) -> None:
        for request in self.accepted:
            for sample in range(request.params.n):
                got = self.outputs.get((request.index, sample))
                if request.index in self.failed:
                    continue
                assert got == answer(request, sample)

    def _check_counts(self) -> None:
        counts, pool, model = self.scheduler.counts, self.pool, self.model
        assert counts.prompt_tokens == sum(len(r.prompt_token_ids) for r in self.accepted)
        assert counts.cached_tokens <= self.plan.sharing.achievable_hit_tokens
        assert counts.computed_tokens == model.computed_tokens
        assert counts.forks <= sum(r.params.n - 1 for r in self.accepted)
        num_partial = model.moves[TransferKind.COPY] - pool.counts.copies
        assert num_partial <= counts.partial_hit_tokens <= num_partial * self.block_size
        assert model.moves[TransferKind.SWAP_IN] <= model.moves[TransferKind.SWAP_OUT]
        assert pool.counts.peak_held <= pool.num_blocks
        if self.mode is RECOMPUTE or not self.swap_blocks:
            assert model.moves[TransferKind.SWAP_OUT] == 0
            assert counts.preemptions[SWAP] == 0
        if self.failed:
            return
        assert counts.forks == sum(r.params.n - 1 for r in self.accepted)
        generated = sum(len(output) - 1 for output in self.outputs.values())
        wrong = self.num_drafts - self.num_right_drafts
        once = counts.prompt_tokens - counts.cached_tokens + generated + wrong
        if not self.num_late_forks:
            assert counts.computed_tokens - counts.recomputed_tokens <= once
        if not any(counts.preemptions.values()):
            assert counts.recomputed_tokens == 0
            if not self.num_late_forks:
                assert counts.computed_tokens == once

    def _check_all_given_back(self) -> None:
        for each in (*self.windowed_pools, *self.slots):
            each.check([])
            assert each.num_free == each.num_blocks
        pool, swap_space = self.pool, self.scheduler.swap_space
        pool.check([])
        assert pool.num_free == pool.num_blocks
        assert (pool.num_held, pool.num_shared, pool.num_tokens_held) == (0, 0, 0)
        assert swap_space.num_free == swap_space.num_blocks
        assert sorted(swap_space.take(swap_space.num_blocks) or []) == list(
            range(swap_space.num_blocks)
        )


@st.composite
def request_lists(draw: st.DrawFn, max_size: int = 10) -> list[Request]:
    """Prompts that share the beginnings of a few trunks, some of them whole."""
    seed = draw(st.integers(0, 9))
    trunks = [random.Random(f"{seed} {trunk}").choices(range(3), k=60) for trunk in range(2)]
    # The second trunk begins as the first one does: a fork in the tree.
    trunks[1][: draw(st.integers(0, 40))] = trunks[0][: draw(st.integers(0, 40))]
    requests = []
    for index in range(draw(st.integers(1, max_size))):
        kept = draw(st.integers(0, 60))
        tail = draw(st.integers(0, 20))
        tail_seed = draw(st.integers(0, 2))
        prompt = trunks[draw(st.integers(0, 1))][:kept]
        prompt = prompt + random.Random(tail_seed).choices(range(3), k=tail)
        params = SamplingParams(
            n=draw(st.sampled_from([1, 1, 1, 2, 3, 4])),
            temperature=1.0,  # greedy requests might be duplicates
            max_tokens=draw(st.integers(1, 20)),
            ignore_eos=draw(st.booleans()),
        )
        requests.append(Request(index, tuple(prompt[:80] or [1]), params))
    return requests


def random_drive(seed: int) -> Drive:
    """A case with more and longer requests than Hypothesis likes to draw."""
    pick = random.Random(seed)
    trunks = [pick.choices(range(3), k=60) for _ in range(3)]
    shared = pick.randint(0, 40)
    trunks[1][:shared] = trunks[0][:shared]
    requests = []
    for index in range(pick.randint(5, 25)):
        prompt = pick.choice(trunks)[: pick.randint(0, 60)]
        prompt = prompt + pick.choices(range(3), k=pick.randint(1, 20))
        params = SamplingParams(
            n=pick.choice([1, 1, 2, 4]),
            temperature=1.0,
            max_tokens=pick.randint(1, 20),
            ignore_eos=pick.random() < 0.7,
        )
        requests.append(Request(index, tuple(prompt), params))
    size = pick.choice([1, 2, 4, 16])
    longest = max(len(r.prompt_token_ids) + r.params.max_tokens - 1 for r in requests)
    return Drive(
        requests,
        size,
        num_blocks=-(-longest // size) + pick.randint(0, 12),
        max_num_seqs=pick.randint(1, 8),
        budget=pick.choice([pick.randint(1, 8), pick.randint(8, 64), 200]),
        mode=pick.choice([SWAP, SWAP, RECOMPUTE]),
        swap_blocks=pick.choice([0, 1, 3, 8, 40, 200]),
        prefix_caching=pick.random() < 0.8,
        fails_at={pick.randint(0, 24): pick.randint(1, 6)} if pick.random() < 0.3 else {},
        predictor=pick.choice([OutputLengthPredictor, OneBlockEach, Optimist])(),
        refill_share=pick.choice([0.0, 0.3]),
    )


def drive_with_states(seed: int) -> Drive:
    """A random run with slots from too few to enough for everybody."""
    pick, plain = random.Random(seed), random_drive(seed)
    return replace(
        plain,
        num_slots=pick.choice([2, 3, 4, plain.max_num_seqs + 1, 3 * plain.max_num_seqs + 8]),
        num_host_slots=pick.choice([0, 1, 4, 40]),
        min_state_tokens=pick.choice([1, 1, 8, 30]),
    )


def least_blocks(window: int, budget: int, size: int) -> int:
    """What one sequence may hold: its window, a step's tokens, and two blocks cut by the edges."""
    return -(-(window - 1 + budget) // size) + 2


def windowed_drive(seed: int) -> Drive:
    """A random run with one or two groups that have windows, and pools from tight to roomy."""
    pick, plain = random.Random(seed), random_drive(seed)
    windows = pick.sample([1, 2, 3, 5, 8, 17, 40], k=pick.choice([1, 1, 2]))
    return replace(
        plain,
        windows={
            window: least_blocks(window, plain.budget, plain.block_size) + pick.randint(0, 20)
            for window in windows
        },
    )


def sibling_drive(seed: int) -> Drive:
    """A random run of rows with many samples of prompts of a block or two, that begin alike and
    give way, beside a group with a window."""
    pick = random.Random(seed)
    size = pick.choice([4, 8])
    trunk = pick.choices(range(3), k=3 * size)
    requests = []
    for index in range(pick.randint(4, 12)):
        prompt = trunk[: pick.choice([size, size, 2 * size, size - 2, size + 1])]
        prompt = prompt + pick.choices(range(3), k=pick.choice([0, 0, 1, 3]))
        params = SamplingParams(
            n=pick.choice([1, 2, 3, 4]),
            temperature=1.0,
            max_tokens=pick.randint(2, 14),
            ignore_eos=True,
        )
        requests.append(Request(index, tuple(prompt), params))
    longest = max(len(r.prompt_token_ids) + r.params.max_tokens - 1 for r in requests)
    budget = pick.choice([5, 9, 17, 40])
    window = pick.choice([3, 5, 8, 12])
    return Drive(
        requests,
        size,
        num_blocks=-(-longest // size) + pick.randint(2, 14),
        max_num_seqs=pick.randint(4, 16),
        budget=budget,
        mode=pick.choice([SWAP, SWAP, RECOMPUTE]),
        swap_blocks=pick.choice([3, 8, 40]),
        predictor=pick.choice([OneBlockEach, Optimist])(),
        windows={window: least_blocks(window, budget, size) + pick.randint(2, 14)},
    )


@st.composite
def drives(draw: st.DrawFn) -> Drive:
    requests = draw(request_lists())
    size = draw(st.sampled_from([1, 2, 4, 16]))
    longest = max(len(r.prompt_token_ids) + r.params.max_tokens - 1 for r in requests)
    fails_at = draw(
        st.one_of(
            st.just({}),
            st.dictionaries(st.integers(0, 9), st.integers(1, 6), min_size=1, max_size=2),
        )
    )
    return Drive(
        requests,
        size,
        # From one block less than the longest request needs, which refuses it, to some more.
        num_blocks=max(1, -(-longest // size) + draw(st.integers(-1, 16))),
        max_num_seqs=draw(st.integers(1, 8)),
        budget=draw(st.integers(1, 64)),
        mode=draw(st.sampled_from([SWAP, SWAP, RECOMPUTE])),
        swap_blocks=draw(st.sampled_from([0, 1, 3, 8, 40, 200])),
        prefix_caching=draw(st.sampled_from([True, True, True, False])),
        fails_at=fails_at,
        predictor=draw(st.sampled_from([OutputLengthPredictor, OneBlockEach, Optimist]))(),
        refill_share=draw(st.sampled_from([0.0, 0.3, 0.9])),
    )


def roomy(requests: list[Request], block_size: int, budget: int, max_num_seqs: int) -> Drive:
    """A drive whose pool holds everything at once."""
    num_blocks = sum(
        -(-(len(r.prompt_token_ids) + r.params.max_tokens) // block_size + 2) * r.params.n
        for r in requests
    )
    return Drive(requests, block_size, num_blocks + 64, max_num_seqs, budget)


def request(index: int, prompt: Iterable[int], max_tokens: int = 4, n: int = 1) -> Request:
    params = SamplingParams(n=n, temperature=1.0, max_tokens=max_tokens, ignore_eos=True)
    return Request(index, tuple(prompt), params)


def lengths(batch: Step) -> list[int]:
    return [chunk.end - chunk.start for chunk in batch.chunks]
