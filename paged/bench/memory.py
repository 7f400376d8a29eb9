"""Memory saved by paging, counted by the engine's own block pool and scheduler.

Nothing is timed and no model is loaded. Requests of random lengths are held concurrently, behind
a shared system prompt, as samples of one prompt, and as they join and leave a memory of fixed size
(`memory_flow`). Contiguous reservation, as in engines without paging, is the same pool with blocks
of the maximum length: each request takes one.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypedDict

import numpy as np

from pagedrun.paged.bench.memory_flow import FirstFitFlow, Flow, FlowOverTime
from pagedrun.paged.bench.result import Measured
from pagedrun.paged.cache.block_pool import BlockPool, SwapSpace, TransferKind
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.scheduling.kv_groups import GroupPool
from pagedrun.paged.scheduling.scheduler import Scheduler, SchedulerLimits
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import MAX_N, SamplingParams

Say = Callable[[str], None]

COUNTS = (10, 25, 50, 100, 200)
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NUM_RESERVED = 10  # requests of the longest length that fit into the default memory
MIN_RESERVED = 2  # with less, some block size would not fit the longest request


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBlocks:
    """Held blocks of a pool, and the tokens in them; shared blocks count once."""

    OMITTED: ClassVar[tuple[str, ...]] = ("num_requests", "num_shared", "bytes_per_token")
    COMPUTED: ClassVar[tuple[str, ...]] = ("bytes", "utilization", "empty_per_request")

    block_size: int
    blocks: int
    tokens: int
    num_requests: int
    num_shared: int
    bytes_per_token: int

    @classmethod
    def by(
        cls,
        lengths: Seq[int],
        block_size: int,
        bytes_per_token: int = 1,
        *,
        num_shared: int = 0,
        share: bool = True,
    ) -> "HeldBlocks":
        """Hold requests of so many tokens each behind `num_shared` common ones.

        share: hold the common tokens once. lengths: at least one, each at least 1.
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
        return cls.of_pool(pool, len(requests), bytes_per_token)

    @classmethod
    def of_pool(cls, pool: BlockPool, num_requests: int, bytes_per_token: int) -> "HeldBlocks":
        """Return the current counts of the pool."""
        return cls(
            block_size=pool.block_size,
            blocks=pool.num_held,
            tokens=pool.num_tokens_held,
            num_requests=num_requests,
            num_shared=pool.num_shared,
            bytes_per_token=bytes_per_token,
        )

    @property
    def bytes(self) -> int:
        """Bytes of the held blocks."""
        return self.blocks * self.block_size * self.bytes_per_token

    @property
    def utilization(self) -> float:
        """Share of the held slots that stores a token."""
        return self.tokens / (self.blocks * self.block_size)

    @property
    def empty_per_request(self) -> float:
        """Held slots without a token, per request."""
        return (self.blocks * self.block_size - self.tokens) / self.num_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSize(HeldBlocks):
    """One entry of `block_sizes`: all requests at once, and as they join and leave."""

    COMPUTED: ClassVar = (*HeldBlocks.COMPUTED, "expected_empty")

    over_time: Flow

    @property
    def expected_empty(self) -> float:
        """Mean number of empty slots if a request may end anywhere in its last block."""
        return (self.block_size - 1) / 2


class AtOnce(TypedDict):
    """One entry of `at_once`: concurrent requests, in both ways."""

    requests: int
    tokens: int
    contiguous: HeldBlocks
    paged: HeldBlocks


class OverTime(TypedDict):
    """`over_time`: requests that join and leave a memory of fixed size, in all three ways."""

    requests: int
    tokens: int
    memory_bytes: int
    contiguous: FlowOverTime
    first_fit: FirstFitFlow
    paged: FlowOverTime


class SavedBlocks(TypedDict):
    """Blocks held with sharing, and the blocks that separate requests would hold."""

    blocks: int
    blocks_alone: int
    bytes_saved: int


class PromptSharing(SavedBlocks):
    """Answers to one prompt, before any of them continues and after one has."""

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
    """The whole of `bench memory`; `lengths`: fields of `NormalLengths`, and the seed."""

    shape: "CacheShape"
    lengths: Mapping[str, float]
    block_size: int
    at_once: list[AtOnce]
    sharing: Sharing | None
    over_time: OverTime
    block_sizes: list[BlockSize]


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Layers, key and value heads and KV cache dtype of a model.

    `dtype` is a key of `DTYPE_BYTES` or of `KV_DTYPES`. The defaults take 512 KiB per token.
    """

    COMPUTED: ClassVar = ("bytes_per_token",)

    name: str = "llama-2-7b"
    num_layers: int = 32
    num_kv_heads: int = 32
    head_dim: int = 128
    dtype: str = "float16"

    @classmethod
    def of_config(cls, name: str, config: ModelConfig) -> "CacheShape":
        """Return the shape of a model, with keys and values in the dtype of its config.

        Raises `UsageError` for layers with different numbers of bytes per token.
        """
        heads = list(config.network.attentions.values())  # recurrent layers keep nothing of a token
        if len({(each.num_kv_heads, each.head_dim, each.source is None) for each in heads}) > 1:
            raise UsageError(
                f"{name} has layers with different numbers of bytes per token, which this "
                f"benchmark does not support; choose a {option('shape')} with uniform layers"
            )
        return cls(name, len(heads), config.num_kv_heads, config.head_dim, config.dtype)

    def changed(self, **changes: Any) -> "CacheShape":
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
    """Normally distributed lengths in tokens, rounded down and clipped to `low` and `high`.

    Raises `UsageError` naming the flag for an empty range.
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
        """Return a length for each of `count` requests; a larger count only appends to them."""
        drawn = np.random.default_rng(seed).normal(self.mean, self.std, count)
        lengths: list[int] = np.clip(drawn, self.low, self.high).astype(np.int64).tolist()
        return lengths


@dataclass(frozen=True, slots=True)
class MemoryBench:
    """Requests of random lengths in paged memory, and in contiguous reservations.

    counts: numbers of concurrent requests. num_shared: tokens of a system prompt, 0 for none.
    memory_bytes: KV cache for the requests that join and leave; None: reservations of
    `NUM_RESERVED` requests. Raises `UsageError` naming the flag.
    """

    shape: CacheShape = field(default_factory=CacheShape)
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
        """Tokens that fit into the memory of requests that join and leave."""
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
        token_bytes = self.shape.bytes_per_token
        flows = {
            size: Flow.through(drawn, size, self.num_slots, token_bytes)
            for size in [*sizes, self.lengths.high]
        }
        return {
            "device": {"type": "cpu"},
            "shape": self.shape,
            "lengths": {**fields_of(self.lengths), "seed": self.seed},
            "block_size": self.block_size,
            "at_once": at_once,
            "sharing": sharing,
            "over_time": {
                "requests": len(drawn),
                "tokens": sum(drawn),
                "memory_bytes": self.num_slots * token_bytes,
                "contiguous": flows[self.lengths.high].over_time(),
                "first_fit": FirstFitFlow.of(drawn, self.num_slots),
                "paged": flows[self.block_size].over_time(),
            },
            "block_sizes": [
                BlockSize(
                    **fields_of(HeldBlocks.by(drawn, size, token_bytes)), over_time=flows[size]
                )
                for size in sizes
            ],
        }

    def _at_once(self, lengths: Seq[int]) -> AtOnce:
        token_bytes = self.shape.bytes_per_token
        return {
            "requests": len(lengths),
            "tokens": sum(lengths),
            "contiguous": HeldBlocks.by(lengths, self.lengths.high, token_bytes),
            "paged": HeldBlocks.by(lengths, self.block_size, token_bytes),
        }

    def _sharing(self, drawn: Seq[int]) -> Sharing:
        """Return the blocks of a system prompt, with samples of it and with rows behind it."""
        num_tokens, size, token_bytes = self.num_shared, self.block_size, self.shape.bytes_per_token
        lengths = drawn[: min(*self.counts, MAX_N)]
        fork = SampleFork.of(num_tokens, len(lengths), size, token_bytes)
        shared, alone = (
            HeldBlocks.by(lengths, size, token_bytes, num_shared=num_tokens, share=share)
            for share in (True, False)
        )
        return {
            "tokens": num_tokens,
            "requests": len(lengths),
            "prompt": {
                **_saved(fork.together, fork.alone),
                "blocks_diverged": fork.diverged.blocks,
                "copies": fork.num_copies,
            },
            "rows": {**_saved(shared, alone), "shared_blocks": shared.num_shared},
        }


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name; values are not copied."""
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _saved(held: HeldBlocks, alone: HeldBlocks) -> SavedBlocks:
    return {
        "blocks": held.blocks,
        "blocks_alone": alone.blocks,
        "bytes_saved": alone.bytes - held.bytes,
    }


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
    def of(
        cls, num_tokens: int, num_samples: int, block_size: int, bytes_per_token: int = 1
    ) -> "SampleFork":
        """Fork a prompt of `num_tokens` tokens, at least one, for so many samples.

        The prompt is computed one token a step.
        """
        alone = HeldBlocks.by([num_tokens] * num_samples, block_size, bytes_per_token, share=False)
        params = SamplingParams(n=num_samples, temperature=1.0, max_tokens=2)
        request = Request(0, (0,) * num_tokens, params)
        pool = BlockPool(alone.blocks + num_samples, block_size)
        plan = Plan([request], PlanRules(block_size, prefix_caching=False))
        limits = SchedulerLimits(num_samples, max_num_batched_tokens=1)
        scheduler = Scheduler([GroupPool(pool, SwapSpace(0))], limits, prefix_caching=False)
        scheduler.add(plan, len(plan))
        for _ in range(num_tokens):
            scheduler.schedule()
            scheduler.update(0)
        together = HeldBlocks.of_pool(pool, num_samples, bytes_per_token)
        step = scheduler.schedule()  # the first sample writes its first own token
        copies = [each for each in step.transfers if each.kind is TransferKind.COPY]
        assert len(copies) == pool.counts.copies, "the pool has counted other copies"
        diverged = HeldBlocks.of_pool(pool, num_samples, bytes_per_token)
        return cls(together, alone, diverged, len(copies))
