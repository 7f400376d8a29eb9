"""Flow: requests that come and go in a memory of a given size, from the first to the last.

Continuous batching on paper: `paged.simulation` runs the engine's scheduler and pool, only the
arithmetic is left out. A request of n tokens brings half of them as its prompt and generates the
others; what it stores in the end is n tokens. Blocks as long as the longest request that is allowed
make contiguous reservation of it: each request takes one of them when it begins.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pagedrun.paged.bench.memory.memory_figures import FlowFigures, FlowOverTime, FlowPoint
from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.metrics.timeline import StepRecord
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.pool_sizing import PlannedPools
from pagedrun.paged.planning.simulation import Simulation, Simulator
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams


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
            [Plan(requests, block_size, prefix_caching=False)],
            config,
            # What attention reads is no figure of this.
            pools=PlannedPools((PoolShape(1, None, num_blocks, bytes_per_token),), bytes_read={}),
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
