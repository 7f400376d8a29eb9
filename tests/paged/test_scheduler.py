"""The scheduler, driven with a fake model that keeps in each slot what a real one would depend on.

A slot holds (position, a digest of every token up to it). Before a token counts as computed, the
fake reads the whole context back through the block table: a block shared wrongly, copied late,
swapped to the wrong place or given away too early does not read back as the sequence's own tokens.
"""

import random
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pagedrun.paged.block_pool import BlockPool
from pagedrun.paged.foresight import Foresight
from pagedrun.paged.plan import Plan
from pagedrun.paged.preemption_mode import PreemptionMode
from pagedrun.paged.request import Request
from pagedrun.paged.sampling import SamplingParams
from pagedrun.paged.scheduled_batch import ScheduledBatch, TransferKind
from pagedrun.paged.scheduler import Scheduler
from pagedrun.paged.scheduler_limits import SchedulerLimits
from pagedrun.paged.sequence import Sequence
from pagedrun.paged.swap_space import SwapSpace

SWAP, RECOMPUTE = PreemptionMode.SWAP, PreemptionMode.RECOMPUTE
EOS = 0
VOCAB = 7
START = 0  # the digest of no tokens

Slot = tuple[int, int]  # position, digest of the tokens up to and including it


def digest(before: int, token: int) -> int:
    return hash((before, token))


def digests(token_ids: Iterable[int]) -> list[int]:
    """The digest at each position."""
    found = [START]
    for token in token_ids:
        found.append(digest(found[-1], token))
    return found[1:]


def next_token(context: int, sample: int) -> int:
    """What the fake model says after a context; the samples of a request differ."""
    return hash((context, sample)) % VOCAB


def answer(request: Request, sample: int) -> tuple[int, ...]:
    """What a sample must come to, without any engine."""
    context = digests(request.prompt_token_ids)[-1]
    output: list[int] = []
    while not is_done(request, output):
        output.append(next_token(context, sample))
        context = digest(context, output[-1])
    return tuple(output)


def is_done(request: Request, output: list[int]) -> bool:
    params = request.params
    stopped = bool(output) and output[-1] == EOS and not params.ignore_eos
    return stopped or len(output) == params.max_tokens


class RecordingPool(BlockPool):
    """Remembers which blocks came off the free list since it was last asked."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.taken: set[int] = set()

    def _take_free(self) -> int:
        block_id = super()._take_free()
        self.taken.add(block_id)
        return block_id


class FakeModel:
    """KV memory as dictionaries, and a forward pass that checks what it reads."""

    def __init__(self, pool: RecordingPool) -> None:
        self.pool = pool
        self.blocks: dict[int, list[Slot | None]] = {}
        self.host: dict[int, list[Slot | None]] = {}
        self.computed_tokens = 0
        self.written_tokens = 0
        self.moves: dict[TransferKind, int] = dict.fromkeys(TransferKind, 0)

    def run(self, batch: ScheduledBatch) -> list[list[int]]:
        self._transfer(batch)
        self._write(batch)
        for chunk in batch.chunks:
            sequence = chunk.sequence
            tokens = sequence.token_ids(0, chunk.end)
            for position, expected in enumerate(digests(tokens)):
                found = self._slot(sequence, position)
                assert found == (position, expected), (
                    f"position {position} of chunk {chunk.start}..{chunk.end} reads {found}"
                )
        self.computed_tokens += batch.num_tokens
        return [
            [next_token(digests(sequence.token_ids(0, end))[-1], s) for s in samples]
            for sequence, end, samples in (
                (chunk.sequence, chunk.end, chunk.sequence.pending_samples)
                for chunk in batch.chunks
                if chunk.samples
            )
        ]

    def _transfer(self, batch: ScheduledBatch) -> None:
        size = self.pool.block_size
        unwritten: list[Slot | None] = [None] * size
        filled = set()
        for each in batch.transfers:
            self.moves[each.kind] += 1
            source = self.host if each.kind is TransferKind.SWAP_IN else self.blocks
            target = self.host if each.kind is TransferKind.SWAP_OUT else self.blocks
            target[each.target] = list(source[each.source])
            if target is self.blocks:
                filled.add(each.target)
        # What a block held in its last life must not pass for its new content.
        for block_id in self.pool.taken - filled:
            self.blocks[block_id] = list(unwritten)
        self.pool.taken.clear()

    def _write(self, batch: ScheduledBatch) -> None:
        size = self.pool.block_size
        written = set()
        for chunk in batch.chunks:
            table = chunk.sequence.block_table
            content = digests(chunk.sequence.token_ids(0, chunk.end))
            for position in range(max(chunk.start, chunk.store_from), chunk.end):
                place = table[position // size], position % size
                assert place not in written, "two chunks write one slot"
                written.add(place)
                self.blocks[place[0]][place[1]] = (position, content[position])
        self.written_tokens += len(written)

    def _slot(self, sequence: Sequence, position: int) -> Slot | None:
        block_id = sequence.block_table[position // self.pool.block_size]
        return self.blocks[block_id][position % self.pool.block_size]


class OneBlockEach(Foresight):
    """The rule of most engines: a free block for each that runs, and preemption after that."""

    def allows(
        self, pool: BlockPool, running: Seq[Sequence], candidate: Sequence, num_taken: int
    ) -> bool:
        return num_taken + len(running) <= pool.num_free


class Optimist(Foresight):
    """Thinks that everybody is about to end: whoever fits now is let in."""

    def expected_output(self, sequence: Sequence) -> int:
        return len(sequence.output_token_ids) + 1


class WorstCase(Foresight):
    """Reserves for everybody what the longest answer takes."""

    def expected_output(self, sequence: Sequence) -> int:
        return sequence.request.params.max_tokens


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
    foresight: Foresight = field(default_factory=Foresight)

    def __post_init__(self) -> None:
        self.plan = Plan(
            self.requests,
            self.block_size,
            prefix_caching=self.prefix_caching,
            max_blocks=self.num_blocks,
        )
        self.pool = RecordingPool(self.num_blocks, self.block_size)
        self.scheduler = Scheduler(
            self.pool,
            SwapSpace(self.swap_blocks),
            SchedulerLimits(self.max_num_seqs, self.budget),
            self.mode,
            planned=self.plan,
            prefix_caching=self.prefix_caching,
            foresight=self.foresight,
        )
        self.model = FakeModel(self.pool)
        self.outputs: dict[tuple[int, int], tuple[int, ...]] = {}
        self.failed: set[int] = set()
        self.refused = {request.index for request in self.plan.too_large}
        self.batches: list[ScheduledBatch] = []
        self.num_late_forks = 0  # siblings that found no room beside their parent

    @property
    def accepted(self) -> list[Request]:
        return [request for request in self.requests if request.index not in self.refused]

    def step(self) -> ScheduledBatch:
        scheduler = self.scheduler
        oldest = scheduler.running[0] if scheduler.running else None
        batch = scheduler.schedule()
        scheduler.check()
        self.batches.append(batch)
        assert batch.chunks, "no sequence can go on"
        assert batch.num_tokens <= self.budget
        assert len(scheduler.running) <= self.max_num_seqs
        assert oldest is None or scheduler.running[0] is oldest, "the oldest was preempted"
        for chunk in batch.chunks:
            sequence = chunk.sequence
            assert chunk.start < chunk.end <= sequence.num_tokens
            assert sequence.num_computed_tokens == chunk.end
            assert chunk.samples == (chunk.end == sequence.num_tokens)
        waiting = len(scheduler.waiting)
        grown = scheduler.update(batch, self.model.run(batch))
        self.num_late_forks += len(scheduler.waiting) - waiting
        scheduler.check()
        for sequence in grown:
            self._collect(sequence)
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
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            if sequence.request is request:
                for block_id in sequence.block_table[: sequence.num_published_blocks]:
                    self.pool.retract(block_id)
                self.scheduler.finish(sequence)

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
        assert counts.cached_tokens <= self.plan.achievable_hit_tokens
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
        once = counts.prompt_tokens - counts.cached_tokens + generated
        if not self.num_late_forks:
            assert counts.computed_tokens - counts.recomputed_tokens <= once
        if not any(counts.preemptions.values()):
            assert counts.recomputed_tokens == 0
            if not self.num_late_forks:
                assert counts.computed_tokens == once

    def _check_all_given_back(self) -> None:
        pool, swap_space = self.pool, self.scheduler.swap_space
        pool.check([])
        assert pool.num_free == pool.num_blocks
        assert (pool.num_held, pool.num_shared, pool.num_tokens_held) == (0, 0, 0)
        assert swap_space.num_free == swap_space.num_blocks
        assert sorted(swap_space.take(swap_space.num_blocks) or []) == list(
            range(swap_space.num_blocks)
        )


# ── Random runs ─────────────────────────────────────────────────────────────────────────────────


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
        foresight=pick.choice([Foresight, OneBlockEach, Optimist])(),
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
        foresight=draw(st.sampled_from([Foresight, OneBlockEach, Optimist]))(),
    )


@given(drive=drives())
@settings(max_examples=150, deadline=None)
def test_any_run_ends_with_the_right_tokens(drive: Drive) -> None:
    drive.finish()
    counts, moves = drive.scheduler.counts, drive.model.moves
    for seen, what in (
        (drive.refused, "refused"),
        (counts.preemptions[SWAP], "swapped"),
        (counts.preemptions[RECOMPUTE], "recomputed"),
        (moves[TransferKind.COPY], "copied"),
        (counts.cached_tokens, "cached"),
        (drive.pool.counts.evictions, "evicted"),
        (drive.num_late_forks, "forked late"),
        (counts.partial_hit_tokens, "copied in part"),
    ):
        event(f"{what}: {bool(seen)}")


@pytest.mark.long
@given(drive=drives())
@settings(max_examples=6000, deadline=None)
def test_any_run_ends_with_the_right_tokens_long(drive: Drive) -> None:
    drive.finish()


@pytest.mark.parametrize("seed", range(40))
def test_a_crowded_run_ends_with_the_right_tokens(seed: int) -> None:
    random_drive(seed).finish()


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(1000, 4000, 500))
def test_a_crowded_run_ends_with_the_right_tokens_long(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 500):
        random_drive(seed).finish()


def roomy(requests: list[Request], block_size: int, budget: int, max_num_seqs: int) -> Drive:
    """A drive whose pool holds everything at once."""
    num_blocks = sum(
        -(-(len(r.prompt_token_ids) + r.params.max_tokens) // block_size + 2) * r.params.n
        for r in requests
    )
    return Drive(requests, block_size, num_blocks + 64, max_num_seqs, budget)


@given(
    requests=request_lists(),
    block_size=st.sampled_from([1, 2, 4, 16]),
    budget=st.integers(1, 64),
    max_num_seqs=st.integers(1, 8),
)
@settings(max_examples=60, deadline=None)
def test_a_large_pool_computes_each_prefix_once(
    requests: list[Request], block_size: int, budget: int, max_num_seqs: int
) -> None:
    """Whatever the steps look like, the cache gives all that the plan promises."""
    drive = roomy(requests, block_size, budget, max_num_seqs).finish()
    counts = drive.scheduler.counts
    assert counts.cached_tokens - counts.partial_hit_tokens == drive.plan.block_hit_tokens
    assert counts.cached_tokens <= drive.plan.achievable_hit_tokens
    assert sum(counts.preemptions.values()) == 0
    assert drive.pool.counts.evictions == 0
    # Every block has had its last use.
    assert drive.pool.num_cached == 0


@given(
    requests=request_lists(),
    block_size=st.sampled_from([1, 2, 4, 16]),
    budget=st.integers(1, 64),
    max_num_seqs=st.integers(1, 8),
)
@settings(max_examples=60, deadline=None)
def test_the_planned_pool_is_large_enough(
    requests: list[Request], block_size: int, budget: int, max_num_seqs: int
) -> None:
    """With `num_blocks_needed` blocks nothing is preempted and no shared prefix is lost."""
    plan = Plan(requests, block_size, prefix_caching=True)
    num_blocks = plan.num_blocks_needed(max_num_seqs)
    drive = Drive(requests, block_size, num_blocks, max_num_seqs, budget).finish()
    assert not drive.refused
    counts = drive.scheduler.counts
    assert sum(counts.preemptions.values()) == 0
    assert counts.cached_tokens - counts.partial_hit_tokens == plan.block_hit_tokens


# ── Single behaviours, and bugs that small paged engines are known to have ──────────────────────


def request(index: int, prompt: Iterable[int], max_tokens: int = 4, n: int = 1) -> Request:
    params = SamplingParams(n=n, temperature=1.0, max_tokens=max_tokens, ignore_eos=True)
    return Request(index, tuple(prompt), params)


def lengths(batch: ScheduledBatch) -> list[int]:
    return [chunk.num_tokens for chunk in batch.chunks]


@pytest.mark.parametrize("size", [1, 2, 4, 16])
@pytest.mark.parametrize("caching", [True, False])
def test_a_prompt_of_exactly_one_block(size: int, caching: bool) -> None:
    """nano-vllm#114: a zero-length forward pass, and a table one block short."""
    drive = Drive([request(0, range(size))], size, num_blocks=8, prefix_caching=caching)
    first = drive.step()
    assert lengths(first) == [size]
    assert first.chunks[0].samples
    assert drive.pool.num_held == 1
    drive.finish()


@pytest.mark.parametrize("num_blocks_of_prompt", [1, 3])
def test_a_prompt_found_whole_computes_one_token_and_writes_none(num_blocks_of_prompt: int) -> None:
    """nano-vllm#114: without a computed token there are no logits to sample from."""
    prompt = range(4 * num_blocks_of_prompt)
    requests = [request(0, prompt, max_tokens=1), request(1, prompt, max_tokens=1)]
    drive = Drive(requests, 4, num_blocks=8, max_num_seqs=1)
    drive.step()
    written = drive.model.written_tokens
    [chunk] = drive.step().chunks
    assert (chunk.start, chunk.end) == (len(prompt) - 1, len(prompt))
    assert chunk.store_from == len(prompt)
    assert drive.model.written_tokens == written
    assert drive.scheduler.counts.cached_tokens == len(prompt) - 1
    drive.finish()


def test_the_token_after_a_prompt_found_whole_gets_its_own_block() -> None:
    """The next token must neither be lost nor land in the shared last block."""
    drive = Drive([request(i, range(8)) for i in range(3)], 4, num_blocks=16)
    assert lengths(drive.step()) == [8, 1, 1]
    second = drive.step()
    targets = [chunk.sequence.block_table[2] for chunk in second.chunks]
    assert len(set(targets)) == 3
    assert [chunk.store_from for chunk in second.chunks] == [8, 8, 8]
    assert drive.pool.num_shared == 2
    drive.finish()


def test_a_prefix_is_computed_once_within_one_step() -> None:
    """vllm#9643 computed it twice; vllm#29387 read it before it was written: the fake would see."""
    prefix = list(range(8))
    drive = Drive([request(i, [*prefix, 10 + i, 20 + i]) for i in range(4)], 4, num_blocks=32)
    batch = drive.step()
    assert lengths(batch) == [10, 2, 2, 2]
    assert drive.pool.num_shared == 2
    assert drive.scheduler.counts.cached_tokens == 24 == drive.plan.achievable_hit_tokens
    drive.finish()


def test_a_prefix_cut_by_the_budget_is_shared_when_it_is_complete() -> None:
    """A row is not let in beside a half-computed prefix, which it would have to compute again."""
    drive = Drive([request(i, range(12)) for i in range(2)], 4, num_blocks=16, budget=5)
    assert lengths(drive.step()) == [5]
    assert lengths(drive.step()) == [5]
    assert lengths(drive.step()) == [2, 1]
    drive.finish()


@pytest.mark.parametrize("mode", [SWAP, RECOMPUTE])
def test_preempted_one_token_past_a_block_and_admitted_again(mode: PreemptionMode) -> None:
    """nano-vllm#217: a stale length after the sequence came back."""
    drive = Drive(
        [request(0, [1] * 4), request(1, [2] * 4)], 4, 3, mode=mode, foresight=OneBlockEach()
    )
    drive.step()
    drive.step()
    [victim] = drive.scheduler.waiting
    assert victim.num_tokens == 4 + 1
    assert drive.scheduler.counts.preemptions[mode] == 1
    drive.finish()
    # Its one full block is a published prompt block. Swapped out, it is restored or found again;
    # after the block was reused, the four prompt tokens are computed once more.
    assert drive.scheduler.counts.recomputed_tokens <= 4


def test_a_cached_prefix_that_grows_while_a_sequence_waits() -> None:
    """nano-vllm#233: the hits of an earlier look are not those of the admission."""
    prompt = list(range(12))
    # The pool cannot hold both at first; the second looks at the cache again in every step.
    drive = Drive([request(0, prompt), request(1, prompt)], 4, num_blocks=5, budget=4)
    drive.finish()
    assert drive.scheduler.counts.cached_tokens == 11


def test_a_request_that_can_never_fit_is_not_added() -> None:
    drive = Drive([request(0, range(8), max_tokens=9), request(1, range(8), max_tokens=10)], 4, 4)
    assert drive.refused == {1}  # 8 + 9 stored tokens need a fifth block, 8 + 8 do not
    drive.finish()
    unchecked = Plan(drive.requests, 4, prefix_caching=True)
    scheduler = Scheduler(
        BlockPool(4, 4), SwapSpace(0), SchedulerLimits(8, 64), SWAP, planned=unchecked
    )
    with pytest.raises(ValueError, match="longer than the pool"):
        scheduler.schedule()


@pytest.mark.parametrize("size", [1, 4, 16])
def test_more_samples_than_sequences_may_run(size: int) -> None:
    drive = Drive([request(0, range(6), max_tokens=5, n=4)], size, num_blocks=16, max_num_seqs=1)
    drive.step()
    assert len(drive.scheduler.running) == 1
    assert len(drive.scheduler.waiting) == 3
    drive.finish()
    assert len(drive.outputs) == 4
    assert drive.scheduler.counts.prompt_tokens == 6  # asked once, not once a sample


def test_samples_share_the_prompt_until_they_write() -> None:
    drive = Drive([request(0, range(6), n=3)], 4, num_blocks=16)
    assert lengths(drive.step()) == [6]  # the prompt is computed once for all three
    assert drive.pool.num_held == 2
    assert drive.pool.num_shared == 2
    batch = drive.step()
    # Two of the three copy the half-filled block; the last one has it to itself by then.
    assert [each.kind for each in batch.transfers] == [TransferKind.COPY] * 2
    assert drive.pool.num_held == 4
    assert drive.pool.num_shared == 1
    drive.finish()
    assert drive.scheduler.counts.forks == 2


def test_samples_that_end_with_a_block_copy_nothing() -> None:
    drive = Drive([request(0, range(8), n=4)], 4, num_blocks=32).finish()
    assert drive.pool.counts.copies == 0


def test_a_block_swapped_out_is_saved_before_its_next_owner_writes() -> None:
    """The victim's block goes to the older sequence in the very step in which it is saved."""
    drive = Drive(
        [request(0, [1] * 4, 12), request(1, [2], 12)],
        4,
        4,
        swap_blocks=4,
        foresight=OneBlockEach(),
    )
    batch = drive.step()
    while not drive.scheduler.waiting:
        batch = drive.step()
    assert [each.kind for each in batch.transfers] == [TransferKind.SWAP_OUT] * 2
    [chunk] = batch.chunks
    assert chunk.start % 4 == 0
    assert chunk.sequence.block_table[-1] in [each.source for each in batch.transfers]
    drive.finish()
    assert drive.model.moves[TransferKind.SWAP_IN] == 2
    assert drive.scheduler.counts.recomputed_tokens == 0


def test_nobody_overtakes_a_preempted_sequence() -> None:
    """It goes back to the head of the queue, though a younger one would fit already."""
    requests = [request(0, [1] * 4), request(1, [2] * 4), request(2, [3])]
    drive = Drive(requests, 4, num_blocks=3, foresight=OneBlockEach())
    drive.step()
    batch = drive.step()
    assert lengths(batch) == [1]
    assert [sequence.request.index for sequence in drive.scheduler.waiting] == [1, 2]
    drive.finish()


def test_nobody_is_let_in_whom_the_pool_may_not_hold_to_the_end() -> None:
    """Nothing is known of answers yet: each may grow from one block to two."""
    requests = [request(i, [i] * 4) for i in range(4)]
    drive = Drive(requests, 4, num_blocks=5)
    assert lengths(drive.step()) == [4, 4]
    drive.finish()
    assert drive.scheduler.counts.steps_short_of_memory > 0
    assert lengths(Drive(requests, 4, num_blocks=8).step()) == [4, 4, 4, 4]


def long_answers(seed: int) -> list[Request]:
    """Rows of a few templates that may say 120 tokens and mostly say far fewer."""
    pick = random.Random(seed)
    heads = [pick.choices(range(3), k=30) for _ in range(3)]
    params = SamplingParams(temperature=1.0, max_tokens=120)
    return [
        Request(i, tuple(pick.choice(heads) + pick.choices(range(3), k=6)), params)
        for i in range(300)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_foresight_preempts_less_and_wastes_less(seed: int) -> None:
    """Answers end at random after seven tokens in the mean: a long tail, unknown beforehand."""
    requests = long_answers(seed)

    def run(foresight: Foresight) -> tuple[int, float, int]:
        drive = Drive(requests, 1, 250, max_num_seqs=128, budget=512, foresight=foresight).finish()
        counts = drive.scheduler.counts
        short = max(counts.steps_short_of_memory, 1)
        mean_held = counts.blocks_held_when_short / short / drive.num_blocks
        return sum(counts.preemptions.values()), mean_held, len(drive.batches)

    preempted, held, num_steps = run(Foresight())
    usually_preempted, _, _ = run(OneBlockEach())
    _, reserved, reserved_steps = run(WorstCase())
    assert preempted < usually_preempted / 2
    assert held >= reserved
    assert num_steps < reserved_steps


def test_update_wants_one_list_of_tokens_for_each_chunk_that_samples() -> None:
    drive = Drive([request(0, [1] * 4, n=2)], 4, num_blocks=8)
    batch = drive.scheduler.schedule()
    with pytest.raises(ValueError, match="zip"):
        drive.scheduler.update(batch, [[1, 2], [3]])
    drive = Drive([request(0, [1] * 4, n=2)], 4, num_blocks=8)
    batch = drive.scheduler.schedule()
    with pytest.raises(ValueError, match="zip"):
        drive.scheduler.update(batch, [[1]])


@pytest.mark.parametrize("fails_at", [1, 2, 5])
@pytest.mark.parametrize("max_num_seqs", [1, 2, 8])
def test_a_failing_request_takes_all_its_samples_with_it(fails_at: int, max_num_seqs: int) -> None:
    """Running, waiting without blocks or swapped out: nothing of it is left behind."""
    requests = [request(0, range(9), 6, n=4), request(1, range(9), 6), request(2, range(5), 6, n=2)]
    drive = Drive(requests, 4, 6, max_num_seqs, fails_at={0: fails_at})
    drive.finish()
    assert drive.failed == {0}
    assert {index for index, _ in drive.outputs} >= {1, 2}


# ── What the plan promises ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("budget", [7, 64, 1000])
@pytest.mark.parametrize("max_num_seqs", [1, 3, 8, 40])
def test_three_nested_levels_are_filled_once(budget: int, max_num_seqs: int) -> None:
    """Company, task, examples, row: what is computed is the tree's tokens, each once."""
    pick = random.Random(3)
    company = pick.choices(range(99), k=32)
    prompts: list[list[int]] = []
    for _ in range(3):
        task = company + pick.choices(range(99), k=16)
        for _ in range(2):
            shots = task + pick.choices(range(99), k=20)
            prompts += [[*shots, 100 + i, *pick.choices(range(99), k=5)] for i in range(5)]
        prompts.append(task)  # found whole: owes the one token that gives its logits
    requests = [request(i, prompt) for i, prompt in enumerate(prompts)]
    drive = roomy(requests, 4, budget, max_num_seqs).finish()
    counts = drive.scheduler.counts
    tree = {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)}
    assert drive.plan.tree.num_distinct_tokens == len(tree)
    # A prompt that ends where others go on comes first, and computes what these then find.
    assert counts.prompt_tokens - counts.cached_tokens == len(tree)


def test_a_block_that_begins_alike_is_copied_not_computed() -> None:
    head = list(range(10, 16))  # a block of 4 and half of the next
    drive = Drive([request(i, [*head, 20 + i, 30 + i]) for i in range(3)], 4, 32, budget=8)
    assert lengths(drive.step()) == [8]
    batch = drive.step()
    # The first row's token, and of each other one the two tokens that are its own.
    assert lengths(batch) == [1, 2, 2]
    assert [each.kind for each in batch.transfers] == [TransferKind.COPY] * 2
    donor = batch.chunks[0].sequence.block_table[1]
    assert {each.source for each in batch.transfers} == {donor}
    assert drive.scheduler.counts.partial_hit_tokens == 4
    assert drive.scheduler.counts.cached_tokens == 12 == drive.plan.achievable_hit_tokens
    drive.finish()


def test_what_this_step_computes_is_not_copied() -> None:
    """Blocks move before a step is computed: there would be nothing in them."""
    head = list(range(10, 16))
    drive = Drive([request(i, [*head, 20 + i]) for i in range(3)], 4, 32)
    assert lengths(drive.step()) == [7, 3, 3]
    drive.finish()
    assert drive.scheduler.counts.partial_hit_tokens == 0


def test_without_prefix_caching_nothing_is_copied() -> None:
    head = list(range(10, 16))
    requests = [request(i, [*head, 20 + i]) for i in range(3)]
    drive = Drive(requests, 4, 32, budget=7, prefix_caching=False).finish()
    assert drive.model.moves[TransferKind.COPY] == 0
    assert drive.scheduler.counts.cached_tokens == 0
