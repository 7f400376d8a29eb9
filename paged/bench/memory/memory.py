"""MemoryBench: what paged KV memory is worth, counted by the engine's own pool and scheduler."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from pagedrun.paged.bench.memory.flow import Flow
from pagedrun.paged.bench.memory.held_blocks import HeldBlocks
from pagedrun.paged.bench.memory.memory_figures import (
    AtOnce,
    BlockSize,
    MemoryBenchFigures,
    SavedBlocks,
    Sharing,
)
from pagedrun.paged.bench.memory.model_shape import ModelShape
from pagedrun.paged.bench.memory.normal_lengths import NormalLengths
from pagedrun.paged.bench.memory.sample_fork import SampleFork
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.sampling_params import MAX_N

Say = Callable[[str], None]

COUNTS = (10, 25, 50, 100, 200)
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NUM_RESERVED = 10  # requests for which the memory would do if each reserved the longest length
MIN_RESERVED = 2  # with room for less, a block size may leave none for the longest request


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
        """Count, telling `say` what is being done; return the result as JSON can hold it."""
        drawn = self.lengths.draw(self.seed, max(self.counts))
        sizes = sorted({*(b for b in BLOCK_SIZES if b <= self.lengths.high), self.block_size})
        say(f"Holding {', '.join(map(str, self.counts))} requests")
        at_once = [self._at_once(drawn[:count]) for count in self.counts]
        sharing = self._sharing(drawn) if self.num_shared else None
        say(f"Running {len(drawn)} requests in blocks of {', '.join(map(str, sizes))} tokens")
        flows = {size: self._flow(drawn, size) for size in [*sizes, self.lengths.high]}
        return {
            "device": {"type": "cpu"},
            "shape": self.shape.to_dict(),
            "lengths": {**self.lengths.to_dict(), "seed": self.seed},
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
