"""Records of single steps, the counters behind them, and series of bounded length.

A run's timeline keeps at most `TIMELINE_RECORDS` records: `Decimated` drops every other item when
it is full and doubles its stride, so that a long run leaves as many as a short one.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Generic, TypeVar

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.metrics.report_sections import TimelinePoint, section_of
from pagedrun.paged.values.engine_config import PreemptionMode

TIMELINE_RECORDS = 2000


@dataclass(slots=True)
class SchedulerCounts:
    """Totals since the run began."""

    prompt_tokens: int = 0  # of admitted sequences, whether computed or cached
    cached_tokens: int = 0  # of these, taken from the cache
    partial_hit_tokens: int = 0  # of these, copied from a partially equal block
    computed_tokens: int = 0  # every token of every chunk
    recomputed_tokens: int = 0  # of these, computed before and lost to a preemption
    forks: int = 0
    steps_short_of_memory: int = 0  # in which a sequence was not admitted, or was preempted
    blocks_held_when_short: int = 0  # sum over these steps
    preemptions: dict[PreemptionMode, int] = field(
        default_factory=lambda: dict.fromkeys(PreemptionMode, 0)
    )


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Sample of a run. Times are seconds since the run began; counts are totals so far."""

    t: float
    step: int
    running: int
    waiting: int
    blocks_total: int
    blocks_used: int  # held by at least one sequence
    blocks_shared: int  # held by more than one
    blocks_cached: int  # free, with a cached prefix
    tokens: int  # tokens held in used blocks, shared ones counted once
    finished: int  # requests finished so far
    total: int  # requests in the run
    prompt_tokens: int  # of started requests
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    prompt_tokens_left: int = 0  # of `prompt_tokens`, not yet computed
    all_prompt_tokens: int = 0  # of all requests in the run
    bytes_read: int = 0  # of streamed weights
    wait_s: float = 0.0  # for these reads
    accepted_drafts: int = 0  # of the generated tokens

    @property
    def prompt_tokens_done(self) -> int:
        """Prompt tokens that were computed or taken from the cache so far."""
        return self.prompt_tokens - self.prompt_tokens_left

    @classmethod
    def of(
        cls,
        pool: BlockPool,
        counts: SchedulerCounts,
        *,
        t: float,
        step: int,
        running: int,
        waiting: int,
        finished: int,
        total: int,
        generated_tokens: int,
        prompt_tokens_left: int = 0,
        all_prompt_tokens: int = 0,
    ) -> "StepRecord":
        """Return the record of a step with the current counts of pool and scheduler."""
        return cls(
            t=t,
            step=step,
            running=running,
            waiting=waiting,
            blocks_total=pool.num_blocks,
            blocks_used=pool.num_held,
            blocks_shared=pool.num_shared,
            blocks_cached=pool.num_cached,
            tokens=pool.num_tokens_held,
            finished=finished,
            total=total,
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            generated_tokens=generated_tokens,
            preemptions=sum(counts.preemptions.values()),
            prompt_tokens_left=prompt_tokens_left,
            all_prompt_tokens=all_prompt_tokens,
        )

    def to_dict(self) -> TimelinePoint:
        """Return the record as an entry of the report's timeline."""
        return section_of(TimelinePoint, lambda name: getattr(self, name))


@dataclass(frozen=True, slots=True)
class RunHooks:
    """Callbacks of a run, called in the thread that iterates it.

    on_step: takes the record of a step. on_window: called for each window but the first. warn:
    takes messages for the user that do not stop the run.
    """

    on_step: Callable[[StepRecord], None] | None = None
    on_window: Callable[[], None] | None = None
    warn: Callable[[str], None] | None = None


NO_HOOKS = RunHooks()


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """State of a replica at a moment of the run.

    `stage`: its stage in words; `at`: its activity. `rows`: written answers of the replica;
    `tokens_per_s`: generated ones of the last seconds. `is_well`: it runs or is done, so that
    others can be shown first.
    """

    number: int
    node: str
    stage: str
    at: str
    rows: int
    tokens_per_s: float
    is_running: bool
    is_well: bool


@dataclass(frozen=True, slots=True)
class ReplicatedStep(StepRecord):
    """State of a run on several replicas, and of each of them."""

    replicas: tuple[ReplicaState, ...] = ()

    @classmethod
    def with_replicas(
        cls, record: StepRecord, replicas: tuple[ReplicaState, ...]
    ) -> "ReplicatedStep":
        """Return the record with the states of the replicas."""
        return cls(**asdict(record), replicas=replicas)


Item = TypeVar("Item")


class Decimated(Generic[Item]):
    """Series that keeps every k-th item; when more than `capacity` are kept, every other one is
    dropped and k doubles, so that a week-long run leaves as many as a short one, evenly spaced."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._stride = 1
        self._numbers: list[int] = []
        self._items: list[Item] = []

    @property
    def items(self) -> tuple[Item, ...]:
        """Kept items, in order."""
        return tuple(self._items)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the kept items."""
        return tuple(self._numbers)

    @property
    def stride(self) -> int:
        """Difference between the numbers of kept items."""
        return self._stride

    def wants(self, number: int) -> bool:
        """Return whether the item of this number would be kept."""
        return number % self._stride == 0

    def add(self, number: int, item: Item) -> None:
        """Add an item if its number is due; numbers rise."""
        if not self.wants(number):
            return
        self._numbers.append(number)
        self._items.append(item)
        if len(self._items) > self._capacity:
            self._stride *= 2
            kept = [place for place, each in enumerate(self._numbers) if self.wants(each)]
            self._numbers = [self._numbers[place] for place in kept]
            self._items = [self._items[place] for place in kept]
