"""StepRecord, the engine's state after one step, and Timeline, a run's worth of them."""

from dataclasses import dataclass

_TIMELINE_KEYS = (
    "t",
    "step",
    "running",
    "waiting",
    "blocks_used",
    "blocks_shared",
    "blocks_cached",
    "tokens",
)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One sample of the run. Times are seconds since the run began; counts are totals so far."""

    t: float
    step: int
    running: int
    waiting: int
    blocks_total: int
    blocks_used: int  # held by at least one sequence
    blocks_shared: int  # held by more than one
    blocks_cached: int  # free, but still holding a prefix that a row may hit
    tokens: int  # tokens held in used blocks, shared ones counted once
    finished: int  # requests finished so far
    total: int  # requests in the run
    prompt_tokens: int  # computed or taken from the cache so far
    cached_tokens: int
    generated_tokens: int
    preemptions: int

    def to_dict(self) -> dict[str, float]:
        """Return the record as it stands in the report's timeline."""
        return {name: getattr(self, name) for name in _TIMELINE_KEYS}


class Timeline:
    """Step records of a whole run in bounded memory.

    Keeps every k-th step; when more than `capacity` are kept, every other one is dropped and k
    doubles, so that a week-long run leaves as many points as a short one.
    """

    def __init__(self, capacity: int = 2000) -> None:
        self._capacity = capacity
        self._stride = 1
        self._records: list[StepRecord] = []

    @property
    def records(self) -> tuple[StepRecord, ...]:
        """The records kept so far, in order."""
        return tuple(self._records)

    @property
    def stride(self) -> int:
        """Steps from one kept record to the next."""
        return self._stride

    def wants(self, step: int) -> bool:
        """Return whether a record of this step would be kept."""
        return step % self._stride == 0

    def add(self, record: StepRecord) -> None:
        """Keep a record if its step is due."""
        if not self.wants(record.step):
            return
        self._records.append(record)
        if len(self._records) > self._capacity:
            self._stride *= 2
            self._records = [each for each in self._records if self.wants(each.step)]
