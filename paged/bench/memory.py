"""Memory saved by paging, counted by the engine's own block pool and scheduler.

Nothing is timed and no model is loaded. Requests of random lengths are held concurrently, behind
a shared system prompt, as samples of one prompt, and as they join and leave a pool of fixed size,
in which the scheduler runs and only the arithmetic is left out. Contiguous reservation, as in
engines without paging, is the same pool with blocks of the maximum length: each request takes
one.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, TypedDict

import numpy as np

from pagedrun.paged.bench.result import Measured
from pagedrun.paged.cache.block_pool import BlockPool, SwapSpace, TransferKind
from pagedrun.paged.cache.cache_spec import KVCacheSpec, PoolShape
from pagedrun.paged.metrics.timeline import StepRecord
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.simulation import Simulation, Simulator
from pagedrun.paged.scheduling.kv_groups import GroupPool
from pagedrun.paged.scheduling.scheduler import Scheduler, SchedulerLimits
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import MAX_N, SamplingParams

Say = Callable[[str], None]

COUNTS = (10, 25, 50, 100, 200)
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NUM_RESERVED = 10  # requests for which the memory would do if each reserved the longest length
MIN_RESERVED = 2  # with room for less, a block size may leave none for the longest request


class HeldFigures(TypedDict):
    """As `HeldBlocks`."""

    block_size: int
    blocks: int
    tokens: int
    bytes: int
    utilization: float
    empty_per_request: float


class AtOnce(TypedDict):
    """One entry of `at_once`: so many requests in flight, in both ways."""

    requests: int
    tokens: int
    contiguous: HeldFigures
    paged: HeldFigures


class FlowFigures(TypedDict):
    """As `Flow`."""

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


class BlockSize(HeldFigures):
    """One entry of `block_sizes`."""

    expected_empty: float
    over_time: FlowFigures


class FlowPoint(TypedDict):
    """A sampled step of a flow."""

    step: int
    running: int
    waiting: int
    blocks_used: int
    tokens: int


class FlowOverTime(FlowFigures):
    """The same with its sampled steps."""

    timeline: list[FlowPoint]


@dataclass(frozen=True, slots=True)
class Flow:
    """A simulated run of requests in `num_blocks` blocks of `block_size` tokens."""

    block_size: int
    num_blocks: int
    simulation: Simulation

    @classmethod
    def through(
        cls, lengths: Seq[int], block_size: int, num_slots: int, bytes_per_token: int
    ) -> "Flow":
        """Run requests of so many tokens, each at least 1, in a memory of `num_slots` tokens.

        The longest of them fits. bytes_per_token: of keys and values in all layers.
        """
        requests = [_request(index, length) for index, length in enumerate(lengths)]
        num_blocks = num_slots // block_size
        config = EngineConfig(
            model=Path(),
            block_size=block_size,
            max_num_seqs=min(len(requests), num_blocks),  # the memory decides, not this
            prefix_caching=False,
            # Room on the host for as much as the memory holds.
            swap_space_bytes=num_blocks * block_size * bytes_per_token,
        )
        simulator = Simulator(
            [Plan(requests, PlanRules(block_size, prefix_caching=False))],
            config,
            # What attention reads is no figure of this.
            shapes=(PoolShape(1, None, num_blocks, bytes_per_token),),
            bytes_read={},
            max_model_len=max(lengths),
        )
        return cls(block_size, num_blocks, simulator.run())

    @property
    def records(self) -> list[StepRecord]:
        """The sampled steps, equally far from each other, in which anything was held."""
        return [record for record in self.simulation.timeline if record.blocks_used]

    @property
    def mean_running(self) -> float:
        """Requests in flight, on average over the sampled steps."""
        return _mean(record.running for record in self.records)

    @property
    def utilization(self) -> float:
        """The part of the held slots that stores a token, on average over the sampled steps."""
        held = (each.tokens / (each.blocks_used * self.block_size) for each in self.records)
        return _mean(held)

    @property
    def memory_used(self) -> float:
        """The part of all slots that stores a token, on average over the sampled steps."""
        num_slots = self.num_blocks * self.block_size
        return _mean(record.tokens / num_slots for record in self.records)

    def to_dict(self) -> FlowFigures:
        """Return the figures, as a result states them."""
        return {
            "block_size": self.block_size,
            "blocks": self.num_blocks,
            "steps": self.simulation.num_steps,
            "max_running": self.simulation.max_running,
            "mean_running": self.mean_running,
            "utilization": self.utilization,
            "memory_used": self.memory_used,
            "peak_blocks": self.simulation.kv["peak_blocks"],
            "preemptions": sum(self.simulation.counts.preemptions.values()),
            "generated_tokens": self.simulation.generated_tokens,
        }

    def over_time(self) -> FlowOverTime:
        """Return the same with the sampled steps."""
        return {**self.to_dict(), "timeline": [_point(each) for each in self.simulation.timeline]}


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """Blocks of the pool that are held, and the tokens in them; shared ones count once."""

    block_size: int
    num_requests: int
    num_blocks: int
    num_tokens: int
    num_shared_blocks: int

    @classmethod
    def by(
        cls, lengths: Seq[int], block_size: int, *, num_shared: int = 0, share: bool = True
    ) -> "HeldBlocks":
        """Hold requests of so many tokens each behind `num_shared` that all of them begin with.

        share: whether the beginning may be held once for all. lengths: at least one, each at
        least 1.
        """
        params = SamplingParams(max_tokens=1)
        requests = [
            Request(index, (0,) * num_shared + (1 + index,) * length, params)
            for index, length in enumerate(lengths)
        ]
        plan = Plan(requests, PlanRules(block_size, prefix_caching=share))
        num_tokens = sum(len(request.prompt_token_ids) for request in requests)
        pool = BlockPool(sum(-(-(num_shared + each) // block_size) for each in lengths), block_size)
        limits = SchedulerLimits(len(requests), num_tokens)
        scheduler = Scheduler([GroupPool(pool, SwapSpace(0))], limits, prefix_caching=share)
        scheduler.add(plan, len(plan))
        scheduler.schedule()
        assert len(scheduler.running) == len(requests), "a request was not admitted"
        return cls.of_pool(pool, len(requests))

    @classmethod
    def of_pool(cls, pool: BlockPool, num_requests: int) -> "HeldBlocks":
        """Return what the pool counts now."""
        held = (pool.num_held, pool.num_tokens_held, pool.num_shared)
        return cls(pool.block_size, num_requests, *held)

    @property
    def utilization(self) -> float:
        """The part of the held slots that stores a token."""
        return self.num_tokens / (self.num_blocks * self.block_size)

    @property
    def empty_per_request(self) -> float:
        """Held slots without a token, for each request."""
        return (self.num_blocks * self.block_size - self.num_tokens) / self.num_requests

    def num_bytes(self, bytes_per_token: int) -> int:
        """Return the bytes of the held blocks."""
        return self.num_blocks * self.block_size * bytes_per_token

    def to_dict(self, bytes_per_token: int) -> HeldFigures:
        """Return the figures, as a result states them."""
        return {
            "block_size": self.block_size,
            "blocks": self.num_blocks,
            "tokens": self.num_tokens,
            "bytes": self.num_bytes(bytes_per_token),
            "utilization": self.utilization,
            "empty_per_request": self.empty_per_request,
        }


class DrawnLengths(TypedDict):
    """`lengths`: fields of `NormalLengths`, and the seed of the draw."""

    mean: float
    std: float
    low: int
    high: int
    seed: int


class OverTime(TypedDict):
    """`over_time`: requests that come and go in so many bytes, in both ways."""

    requests: int
    tokens: int
    memory_bytes: int
    contiguous: FlowOverTime
    paged: FlowOverTime


class SavedBlocks(TypedDict):
    """Blocks held with sharing, and the blocks that separate requests would hold."""

    blocks: int
    blocks_alone: int
    bytes_saved: int


class PromptSharing(SavedBlocks):
    """Answers to one prompt: as long as none goes on, and once one does."""

    blocks_diverged: int
    copies: int


class RowSharing(SavedBlocks):
    """Rows that begin with the prompt."""

    shared_blocks: int


class Sharing(TypedDict):
    """`sharing`: a system prompt of `tokens` tokens for so many requests."""

    tokens: int
    requests: int
    prompt: PromptSharing
    rows: RowSharing


class MemoryBenchFigures(Measured):
    """The whole."""

    shape: "ModelShape"
    lengths: DrawnLengths
    block_size: int
    at_once: list[AtOnce]
    sharing: Sharing | None
    over_time: OverTime
    block_sizes: list[BlockSize]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The layers and the heads of keys and values of a model, and what they are stored in.

    `dtype` is a key of `DTYPE_BYTES` or of `KV_DTYPES`. The defaults are the usual example for the
    price of a token: a kv head for each query head, 512 KiB in all.
    """

    COMPUTED: ClassVar = ("bytes_per_token",)

    name: str = "llama-2-7b"
    num_layers: int = 32
    num_kv_heads: int = 32
    head_dim: int = 128
    dtype: str = "float16"

    @classmethod
    def of_config(cls, name: str, config: ModelConfig) -> "ModelShape":
        """Return the shape of a model, stored in the dtype that its weights were meant for.

        Raises `UsageError` for one whose layers keep different things of a token.
        """
        heads = list(config.network.attentions.values())  # recurrent layers keep nothing of a token
        if len({(each.num_kv_heads, each.head_dim, each.source is None) for each in heads}) > 1:
            raise UsageError(
                f"{name} has layers with different numbers of bytes per token, which this "
                f"benchmark does not support; choose a {option('shape')} with uniform layers"
            )
        return cls(name, len(heads), config.num_kv_heads, config.head_dim, config.dtype)

    def changed(self, **changes: Any) -> "ModelShape":
        """Return the shape with other fields where they are not None."""
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(self, name=f"{self.name}, changed", **given) if given else self

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers, scales included."""
        spec = KVCacheSpec(self.num_layers, self.num_kv_heads, self.head_dim, "float32")
        return spec.stored_as(self.dtype).bytes_per_token


@dataclass(frozen=True, slots=True)
class NormalLengths:
    """Whole tokens around `mean`, spread by `std`, none below `low` and none above `high`.

    Raises `UsageError` naming the flag for a range that holds nothing.
    """

    mean: float = 500.0
    std: float = 200.0
    low: int = 200
    high: int = 2048

    def __post_init__(self) -> None:
        if self.low < 1:
            raise UsageError(f"{option('min_len')} is {self.low}; it must be at least 1")
        if self.low > self.high:
            raise UsageError(
                f"{option('min_len')} {self.low} is more than {option('max_len')} {self.high}"
            )
        for flag, value in ((option("mean"), self.mean), (option("std"), self.std)):
            if not 0 <= value < float("inf"):
                raise UsageError(f"{flag} is {value}; it must be a number of at least 0")

    def draw(self, seed: int, count: int) -> list[int]:
        """Return a length for each of `count` requests; of more, the first ones are the same."""
        drawn = np.random.default_rng(seed).normal(self.mean, self.std, count)
        lengths: list[int] = np.clip(drawn, self.low, self.high).astype(np.int64).tolist()
        return lengths


@dataclass(frozen=True, slots=True)
class MemoryBench:
    """Requests of drawn lengths in memory that is paged, and in memory that is reserved.

    counts: requests in flight at once, one line for each. num_shared: tokens of a system prompt,
    0 for none. memory_bytes: of keys and values, for the requests that come and go; None for what
    `NUM_RESERVED` requests reserve. Nothing is timed, and nothing is computed but counts. Raises
    `UsageError` naming the flag.
    """

    shape: ModelShape = field(default_factory=ModelShape)
    lengths: NormalLengths = field(default_factory=NormalLengths)
    counts: Seq[int] = COUNTS
    block_size: int = 16
    num_shared: int = 200
    seed: int = 0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1:
            raise UsageError(
                f"{option('requests')} is {min(self.counts, default=0)}; it must be at least 1"
            )
        if not 1 <= self.block_size <= self.lengths.high:
            raise UsageError(
                f"{option('block_size')} is {self.block_size}; it must be at least 1 and at most "
                f"{option('max_len')}, {self.lengths.high}"
            )
        least = MIN_RESERVED * self.lengths.high
        if self.num_slots < least:
            raise UsageError(
                f"{option('kv_cache_memory_bytes')} {self.memory_bytes} holds {self.num_slots} "
                f"tokens of {self.shape.bytes_per_token} bytes; give at least "
                f"{least * self.shape.bytes_per_token}, for {MIN_RESERVED} requests of "
                f"{option('max_len')}"
            )

    @property
    def num_slots(self) -> int:
        """Tokens that the memory holds in which requests come and go."""
        if self.memory_bytes is None:
            return NUM_RESERVED * self.lengths.high
        return self.memory_bytes // self.shape.bytes_per_token

    def run(self, say: Say) -> MemoryBenchFigures:
        """Count, reporting progress to `say`; return the result in JSON's types."""
        drawn = self.lengths.draw(self.seed, max(self.counts))
        sizes = sorted({*(b for b in BLOCK_SIZES if b <= self.lengths.high), self.block_size})
        say(f"Holding {', '.join(map(str, self.counts))} requests")
        at_once = [self._at_once(drawn[:count]) for count in self.counts]
        sharing = self._sharing(drawn) if self.num_shared else None
        say(f"Running {len(drawn)} requests in blocks of {', '.join(map(str, sizes))} tokens")
        flows = {size: self._flow(drawn, size) for size in [*sizes, self.lengths.high]}
        return {
            "device": {"type": "cpu"},
            "shape": self.shape,
            "lengths": {
                "mean": self.lengths.mean,
                "std": self.lengths.std,
                "low": self.lengths.low,
                "high": self.lengths.high,
                "seed": self.seed,
            },
            "block_size": self.block_size,
            "at_once": at_once,
            "sharing": sharing,
            "over_time": {
                "requests": len(drawn),
                "tokens": sum(drawn),
                "memory_bytes": self.num_slots * self.shape.bytes_per_token,
                "contiguous": flows[self.lengths.high].over_time(),
                "paged": flows[self.block_size].over_time(),
            },
            "block_sizes": [self._block_size(drawn, flows[size]) for size in sizes],
        }

    def _at_once(self, lengths: Seq[int]) -> AtOnce:
        bytes_per_token = self.shape.bytes_per_token
        return {
            "requests": len(lengths),
            "tokens": sum(lengths),
            "contiguous": HeldBlocks.by(lengths, self.lengths.high).to_dict(bytes_per_token),
            "paged": HeldBlocks.by(lengths, self.block_size).to_dict(bytes_per_token),
        }

    def _sharing(self, drawn: Seq[int]) -> Sharing:
        """Return what a system prompt takes: one prompt's samples, and rows that begin alike."""
        num_tokens, size = self.num_shared, self.block_size
        lengths = drawn[: min(*self.counts, MAX_N)]
        fork = SampleFork.of(num_tokens, len(lengths), size)
        shared = HeldBlocks.by(lengths, size, num_shared=num_tokens)
        alone = HeldBlocks.by(lengths, size, num_shared=num_tokens, share=False)
        return {
            "tokens": num_tokens,
            "requests": len(lengths),
            "prompt": {
                **self._saved(fork.together, fork.alone),
                "blocks_diverged": fork.diverged.num_blocks,
                "copies": fork.num_copies,
            },
            "rows": {
                **self._saved(shared, alone),
                "shared_blocks": shared.num_shared_blocks,
            },
        }

    def _saved(self, held: HeldBlocks, alone: HeldBlocks) -> SavedBlocks:
        token = self.shape.bytes_per_token
        return {
            "blocks": held.num_blocks,
            "blocks_alone": alone.num_blocks,
            "bytes_saved": alone.num_bytes(token) - held.num_bytes(token),
        }

    def _flow(self, drawn: Seq[int], block_size: int) -> Flow:
        return Flow.through(drawn, block_size, self.num_slots, self.shape.bytes_per_token)

    def _block_size(self, drawn: Seq[int], flow: Flow) -> BlockSize:
        """Return what the requests hold in blocks of this size, all at once and over time."""
        held = HeldBlocks.by(drawn, flow.block_size)
        return {
            **held.to_dict(self.shape.bytes_per_token),
            "expected_empty": (flow.block_size - 1) / 2,
            "over_time": flow.to_dict(),
        }


def _point(record: StepRecord) -> FlowPoint:
    return {
        "step": record.step,
        "running": record.running,
        "waiting": record.waiting,
        "blocks_used": record.blocks_used,
        "tokens": record.tokens,
    }


def _mean(values: Iterable[float]) -> float:
    """Return the mean, 0 where every sampled step found the requests of the one before gone."""
    return fmean([*values] or [0.0])


def _request(index: int, length: int) -> Request:
    """Return a request that stores `length` tokens when it ends; its last token never is."""
    num_prompt = (length + 1) // 2
    params = SamplingParams(max_tokens=length - num_prompt + 1, ignore_eos=True)
    return Request(index, (index,) * num_prompt, params)


@dataclass(frozen=True, slots=True)
class SampleFork:
    """Blocks of samples: shared (`together`), separate (`alone`), and after one has `diverged`.

    `num_copies` are the blocks copied for that: the last one, unless the prompt fills it.
    """

    together: HeldBlocks
    alone: HeldBlocks
    diverged: HeldBlocks
    num_copies: int

    @classmethod
    def of(cls, num_tokens: int, num_samples: int, block_size: int) -> "SampleFork":
        """Fork a prompt of `num_tokens` tokens, at least one, for so many samples.

        The prompt is computed one token a step, as there is room for no more.
        """
        alone = HeldBlocks.by([num_tokens] * num_samples, block_size, share=False)
        params = SamplingParams(n=num_samples, temperature=1.0, max_tokens=2)
        request = Request(0, (0,) * num_tokens, params)
        pool = BlockPool(alone.num_blocks + num_samples, block_size)
        plan = Plan([request], PlanRules(block_size, prefix_caching=False))
        limits = SchedulerLimits(num_samples, max_num_batched_tokens=1)
        scheduler = Scheduler([GroupPool(pool, SwapSpace(0))], limits, prefix_caching=False)
        scheduler.add(plan, len(plan))
        for _ in range(num_tokens):
            scheduler.schedule()
            scheduler.update(0)
        together = HeldBlocks.of_pool(pool, num_samples)
        step = scheduler.schedule()  # the first sample writes its first own token
        copies = [each for each in step.transfers if each.kind is TransferKind.COPY]
        assert len(copies) == pool.counts.copies, "the pool has counted other copies"
        return cls(together, alone, HeldBlocks.of_pool(pool, num_samples), len(copies))
