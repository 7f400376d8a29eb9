"""Runs of requests that join and leave a memory of fixed size, without the arithmetic.

In blocks, the engine's scheduler and block pool run. Contiguous reservation, as in engines without
paging, is the same with blocks of the maximum length. `FirstFit` is the contiguous memory without a
maximum length: each request gets a piece of exactly its own length, as if lengths were known
beforehand. Its free slots are in holes between the pieces, and a request longer than the largest
hole waits even if fewer slots than are free would do: external fragmentation.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.metrics.timeline import Decimated
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.simulation import TIMELINE_RECORDS, Simulator
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

# Counts after a step, by the names in `_COUNTS`, which are those of `StepRecord`.
FlowStep = dict[str, int]
_COUNTS = ("step", "running", "waiting", "blocks_used", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Figures of a simulated run of requests in `blocks` blocks of `block_size` tokens.

    Means are over the sampled steps in which a block is held: `mean_running` of the running
    requests, `utilization` of the share of the held slots that stores a token, `memory_used` of the
    same share of all slots.
    """

    OMITTED: ClassVar[tuple[str, ...]] = ("samples",)

    block_size: int
    blocks: int
    steps: int
    max_running: int
    mean_running: float
    utilization: float
    memory_used: float
    peak_blocks: int
    preemptions: int
    generated_tokens: int
    samples: tuple[FlowStep, ...]

    @classmethod
    def through(
        cls, lengths: Seq[int], block_size: int, num_slots: int, bytes_per_token: int
    ) -> "Flow":
        """Run requests of so many tokens, each at least 1, in a memory of `num_slots` tokens.

        The longest of them fits. bytes_per_token: of keys and values in all layers.
        """
        num_blocks = num_slots // block_size
        config = EngineConfig(
            model=Path(),
            block_size=block_size,
            max_num_seqs=min(len(lengths), num_blocks),  # the memory decides, not this
            prefix_caching=False,
            # Room on the host for as much as the memory holds.
            swap_space_bytes=num_blocks * block_size * bytes_per_token,
        )
        simulation = Simulator(
            [_plan(lengths, block_size)],
            config,
            shapes=(PoolShape(1, None, num_blocks, bytes_per_token),),
            bytes_read={},  # not reported here
            max_model_len=max(lengths),
        ).run()
        samples = tuple(
            {name: getattr(each, name) for name in _COUNTS} for each in simulation.timeline
        )
        return cls(
            block_size=block_size,
            blocks=num_blocks,
            steps=simulation.num_steps,
            max_running=simulation.max_running,
            peak_blocks=simulation.kv["peak_blocks"],
            preemptions=sum(simulation.counts.preemptions.values()),
            generated_tokens=simulation.generated_tokens,
            **_means(samples, block_size, num_blocks),
        )

    def over_time(self) -> "FlowOverTime":
        """Return the same figures with the sampled steps."""
        return FlowOverTime(**{each.name: getattr(self, each.name) for each in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowOverTime(Flow):
    """Flow with its sampled steps."""

    COMPUTED: ClassVar[tuple[str, ...]] = ("timeline",)

    @property
    def timeline(self) -> tuple[FlowStep, ...]:
        """The sampled steps, at equal distances."""
        return self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFitFlow(FlowOverTime):
    """Flow in pieces of exact lengths; a block is one slot.

    A step is short of a hole if the next request waits although as many slots as it needs are free.
    `refused_steps` are these steps, `refused_requests` the requests that wait in them. Their means:
    `free_slots`, in `holes`, and `largest_hole`; `external_fragmentation` is the share of the free
    slots outside the largest hole. All are 0 without such a step.
    """

    refused_steps: int
    refused_requests: int
    free_slots: float
    holes: float
    largest_hole: float
    external_fragmentation: float

    @classmethod
    def of(cls, lengths: Seq[int], num_slots: int) -> "FirstFitFlow":
        """Run requests of so many tokens, each at least 1, in a memory of `num_slots` tokens.

        They join in the order of `Flow.through`, none before one that waits.
        """
        run = _FirstFitRun(lengths, num_slots)
        samples = Decimated[FlowStep](TIMELINE_RECORDS)
        for step in run.steps():
            samples.add(step["step"], step)
        short = run.short
        return cls(
            block_size=1,
            blocks=num_slots,
            steps=run.num_steps,
            max_running=run.max_running,
            peak_blocks=run.peak_held,
            preemptions=0,  # a piece has room to the end
            generated_tokens=run.generated_tokens,
            **_means(samples.items, 1, num_slots),
            refused_steps=len(short),
            refused_requests=len({each.request for each in short}),
            free_slots=_mean(each.free for each in short),
            holes=_mean(each.holes for each in short),
            largest_hole=_mean(each.largest for each in short),
            external_fragmentation=_mean(1 - each.largest / each.free for each in short),
        )


class FirstFit:
    """Contiguous memory of `num_slots` slots; a piece comes from the first hole with room for it.

    `holes`: the first slot and the number of slots of each, in ascending order; no two touch.
    """

    def __init__(self, num_slots: int) -> None:
        self.holes = [(0, num_slots)]

    @property
    def num_free(self) -> int:
        """Slots in all holes."""
        return sum(length for _, length in self.holes)

    @property
    def largest_hole(self) -> int:
        """Slots of the largest hole, 0 without one."""
        return max((length for _, length in self.holes), default=0)

    def allocate(self, length: int) -> int | None:
        """Return the first slot of a new piece; `None` if no hole has room for it."""
        for index, (start, room) in enumerate(self.holes):
            if room >= length:
                self.holes[index : index + 1] = (
                    [(start + length, room - length)] if room > length else []
                )
                return start
        return None

    def release(self, start: int, length: int) -> None:
        """Free a piece; its hole and those that it touches become one."""
        index = bisect_left(self.holes, (start, length))
        end = index
        if index > 0 and sum(self.holes[index - 1]) == start:
            index -= 1
            start, length = self.holes[index][0], length + self.holes[index][1]
        if end < len(self.holes) and start + length == self.holes[end][0]:
            length += self.holes[end][1]
            end += 1
        self.holes[index:end] = [(start, length)]


@dataclass(slots=True)
class _Piece:
    """Running request: its piece, and its tokens in it."""

    start: int
    length: int
    num_prompt: int
    num_stored: int = 0


class _Shortage(NamedTuple):
    """A step whose next request waits although enough slots are free."""

    request: int
    free: int
    holes: int
    largest: int


class _FirstFitRun:
    """A run in a `FirstFit` memory: a step gives each running request a token, as the engine's.

    Prompts take what is left of the tokens of a step.
    """

    def __init__(self, lengths: Seq[int], num_slots: int) -> None:
        self.short: list[_Shortage] = []
        self.num_steps = self.max_running = self.peak_held = self.generated_tokens = 0
        self._waiting = deque(each.request for each in _plan(lengths, block_size=1))
        self._running: list[_Piece] = []
        self._memory = FirstFit(num_slots)
        self._num_slots = num_slots
        self._step_tokens = EngineConfig(model=Path()).max_num_batched_tokens

    def steps(self) -> Iterator[FlowStep]:
        """Run to the end; yield the counts after each step, when ended requests have left."""
        while self._waiting or self._running:
            self._admit()
            self.num_steps += 1
            self.max_running = max(self.max_running, len(self._running))
            self.peak_held = max(self.peak_held, self._num_slots - self._memory.num_free)
            self._compute()
            yield {
                "step": self.num_steps,
                "running": len(self._running),
                "waiting": len(self._waiting),
                "blocks_used": self._num_slots - self._memory.num_free,
                "tokens": sum(each.num_stored for each in self._running),
            }

    def _admit(self) -> None:
        while self._waiting:
            request, memory = self._waiting[0], self._memory
            num_prompt = len(request.prompt_token_ids)
            length = num_prompt + request.params.max_tokens - 1
            start = memory.allocate(length)
            if start is None:
                if memory.num_free >= length:
                    holes = (memory.num_free, len(memory.holes), memory.largest_hole)
                    self.short.append(_Shortage(request.index, *holes))
                return
            self._running.append(_Piece(start, length, num_prompt))
            self._waiting.popleft()

    def _compute(self) -> None:
        """Store a token of each request that generates, and tokens of prompts; release the ended
        ones."""
        decoding = [each for each in self._running if each.num_stored >= each.num_prompt]
        left = self._step_tokens - len(decoding)
        for each in self._running:
            num_tokens = 1
            if each.num_stored < each.num_prompt:
                num_tokens = min(left, each.num_prompt - each.num_stored)
                left -= num_tokens
            each.num_stored += num_tokens
            self.generated_tokens += each.num_stored >= each.num_prompt
        for each in self._running:
            if each.num_stored == each.length:
                self._memory.release(each.start, each.length)
        self._running = [each for each in self._running if each.num_stored < each.length]


def _plan(lengths: Seq[int], block_size: int) -> Plan:
    requests = [_request(index, length) for index, length in enumerate(lengths)]
    return Plan(requests, PlanRules(block_size, prefix_caching=False))


def _request(index: int, length: int) -> Request:
    """Return a request that stores `length` tokens at its end; the last token is never stored."""
    num_prompt = (length + 1) // 2
    params = SamplingParams(max_tokens=length - num_prompt + 1, ignore_eos=True)
    return Request(index, (index,) * num_prompt, params)


def _means(samples: tuple[FlowStep, ...], block_size: int, num_blocks: int) -> dict[str, Any]:
    """Return the samples and the means over them."""
    held = [each for each in samples if each["blocks_used"]]
    return {
        "samples": samples,
        "mean_running": _mean(each["running"] for each in held),
        "utilization": _mean(each["tokens"] / (each["blocks_used"] * block_size) for each in held),
        "memory_used": _mean(each["tokens"] / (num_blocks * block_size) for each in held),
    }


def _mean(values: Iterable[float]) -> float:
    """Return the mean, 0 without values."""
    return fmean([*values] or [0.0])
