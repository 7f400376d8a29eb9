"""Sizes of a run: settings fitted to the device, memory for decoding, pools and slots.

`plan` and `generate` call the same functions with the same plan. On a CPU the settings that
were not given have the defaults of `EngineConfig`. On a GPU a step is large enough for the
device, a block is as long as its attention kernel reads at once, and as many rows run as its
memory holds.

Steps that decode take GPU memory beside weights and pools: attention passes partial softmax
states from one launch to the next, and a captured step keeps its workspace in memory of its
own. Both are estimated from shapes; the memory of captured steps is measured later, and no
more steps are captured than fit.
"""

from collections.abc import Container, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.cache.cache_spec import KVCacheSpec, StateSpec
from pagedrun.paged.models.network import AttentionHeads, Network
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.plan_part import EarlierAnswers
from pagedrun.paged.planning.planner import Planner, RequestLimits
from pagedrun.paged.planning.pool_sizing import PoolDemand, PoolSizer, Sizes, SlotSizer, SlotSizes
from pagedrun.paged.planning.prefix_reuse import MIN_STATE_TOKENS, NO_ROOM, StoreRoom
from pagedrun.paged.values.engine_config import DTYPE_BYTES, OFF, Deadline, EngineConfig


@dataclass(frozen=True, slots=True)
class PlanBasis:
    """Settings of a planner for an engine; can be pickled.

    windows: of the groups of layers that have one, in tokens.
    """

    limits: RequestLimits
    rules: PlanRules
    windows: tuple[int, ...] = ()

    def planner(
        self,
        config: EngineConfig,
        done: Container[int] = frozenset(),
        earlier: EarlierAnswers | None = None,
        deadline: Deadline | None = None,
    ) -> Planner:
        """Return a planner for this engine; `config` is the engine's."""
        return Planner(
            self.rules,
            self.limits,
            done=done,
            earlier=earlier,
            sample_seed=None if deadline is None else deadline.seed,
            reserved_len=config.max_model_len,
        )


class RunSizes(NamedTuple):
    """Settings fitted to the plan, memory, blocks of each pool and slots for recurrent states."""

    config: EngineConfig
    budget: MemoryBudget
    num_blocks: Sizes
    slots: SlotSizes | None


@dataclass(frozen=True)
class RunSizing:
    """Sizes the pools and slots of one run; the sizing of `plan`, `generate` and replicas.

    network, dtype: model and torch's name of its number format. specs, state_specs: keys and values
    per group of layers, and recurrent states per layer. memory: budget before decoding steps are
    accounted for. memory_bytes: of the device's own memory, None on a CPU. max_model_len: upper
    limit of prompt and answer together, `longest` that of the rows, in tokens.

    Raises `UsageError` if the budget has no room for one sequence, or for none of the requested
    length.
    """

    config: EngineConfig
    network: Network
    dtype: str
    specs: Seq[KVCacheSpec]
    state_specs: Seq[StateSpec]
    memory: MemoryBudget
    memory_bytes: int | None
    max_model_len: int
    longest: int

    def __post_init__(self) -> None:
        self._pools.check_max_model_len()

    def basis(
        self, vocab_size: int, read_once: ReadOnce, store_room: StoreRoom = NO_ROOM
    ) -> PlanBasis:
        """Return the settings of a planner for these pools."""
        rules = PlanRules(
            self.config.block_size,
            self.config.prefix_caching,
            self._pools.most,
            read_once,
            store_room,
            min_state_tokens=MIN_STATE_TOKENS if self.state_specs else None,
        )
        limits = RequestLimits(self.max_model_len, vocab_size, self._slots.max_beam_width)
        return PlanBasis(limits, rules, self._pools.windows)

    def sizes(self, first: Plan, *, is_whole: bool) -> RunSizes:
        """Return the sizes for a file that begins with the window `first`.

        is_whole: no other windows follow. Raises `UsageError` where `PoolSizer.sizes` does.
        """

        def size(sizing: RunSizing) -> RunSizes:
            pools = sizing._pools.sizes(first, is_whole=is_whole)
            slots = sizing._slots.sizes(first, is_whole=is_whole)
            return RunSizes(sizing.config, sizing._budget, pools, slots)

        sizes = size(self)
        config = fitted_to_plan(self.config, self.memory_bytes, first, sizes.num_blocks[0])
        return sizes if config == self.config else size(replace(self, config=config))

    def sizes_for(self, demand: PoolDemand) -> RunSizes:
        """Return the sizes for rows that are planned elsewhere."""

        def size(sizing: RunSizing) -> RunSizes:
            pools = sizing._pools.sizes_for(demand)
            return RunSizes(sizing.config, sizing._budget, pools, sizing._slots.most())

        sizes = size(self)
        config = fitted_to_demand(self.config, self.memory_bytes, demand, sizes.num_blocks[0])
        return sizes if config == self.config else size(replace(self, config=config))

    @cached_property
    def _budget(self) -> MemoryBudget:
        return leave_for_decoding(
            self.memory, self.network, self.dtype, self.config, self.specs, self.longest
        )

    @cached_property
    def _slots(self) -> SlotSizer:
        return SlotSizer(
            self.config,
            sum(spec.num_bytes_behind(self.longest) for spec in self.state_specs),
            self._budget,
            are_opaque=any(spec.is_opaque for spec in self.state_specs),
            may_draft=self.config.speculate != OFF
            and (self.memory_bytes is None or self.config.reproducible),
        )

    @cached_property
    def _pools(self) -> PoolSizer:
        return PoolSizer(self.config, self.specs, self._slots.rest, self.max_model_len)


GPU_BLOCK_SIZE = 64  # tokens
GPU_REFILL_SHARE = 1 / 16
# Tokens of a step by nominal memory size: on smaller devices the activations of a large step take
# too large a share.
_BATCHED_TOKENS = ((70 * 10**9, 16_384), (23 * 10**9, 8_192), (0, 4_096))
MIN_NUM_SEQS, MAX_NUM_SEQS = 64, 1_024
_NUM_SEQS_STEP = 64  # steps are captured for multiples of so many rows


def fitted_to_device(config: EngineConfig, memory_bytes: int | None) -> EngineConfig:
    """Return the configuration with its default settings fitted to a device.

    memory_bytes: of the device's own memory, None for a CPU. `max_num_seqs` is the maximum until
    the plan is known: see `fitted_to_plan`.
    """
    if memory_bytes is None:
        return config
    tokens = next(tokens for least, tokens in _BATCHED_TOKENS if memory_bytes >= least)
    fitted: dict[str, Any] = {
        "block_size": GPU_BLOCK_SIZE,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_num_batched_tokens": tokens,
        "refill_share": GPU_REFILL_SHARE,
    }
    return replace(config, **{name: fitted[name] for name in config.fitted if name in fitted})


def fitted_to_plan(
    config: EngineConfig, memory_bytes: int | None, first: Plan, num_blocks: int
) -> EngineConfig:
    """Return the configuration with `max_num_seqs` fitted to the rows of a file that a pool holds,
    unless it was given.

    first: plan of the file's first window. num_blocks: of the pool.
    """
    if memory_bytes is None or not len(first):
        return config
    demand = PoolDemand.of(first, (), is_whole=False)
    return fitted_to_demand(config, memory_bytes, demand, num_blocks)


def fitted_to_demand(
    config: EngineConfig, memory_bytes: int | None, demand: PoolDemand, num_blocks: int
) -> EngineConfig:
    """Return `fitted_to_plan` for a plan that is known by its demand only.

    Rows are counted at the average length limit of their answers: the predictor of output lengths
    decides which of them run together.
    """
    if memory_bytes is None or "max_num_seqs" not in config.fitted:
        return config
    shared = min(demand.num_shared, num_blocks) * config.prefix_caching
    held = int((num_blocks - shared) / demand.mean)
    seats = held // _NUM_SEQS_STEP * _NUM_SEQS_STEP
    return replace(config, max_num_seqs=min(max(seats, MIN_NUM_SEQS), MAX_NUM_SEQS))


# Constants of `pagedrun.kernels.gpu.attention`: a test compares them.
_UNIT_TOKENS = 1024  # keys of a prefix that give one state
_OWN_TOKENS = 512  # keys of a row's own that do
SINGLE_PASS_DIM = 256  # heads up to this size need no states of a row's own, given many rows
FEW_PROGRAMS = 2 * 304  # what are not many rows times kv heads, on the largest GPU there is
_LEAST_TOKENS = 2048  # of the block tables that captured steps have
# Reserve for memory of the driver and of torch's allocator; an estimate, not measured.
_GRAPH_BYTES = 128 * 2**20
_MOST_KEPT = 64  # of a small memory one part in so many
_MOST_OF_POOL = 0.5  # of the pool's memory; steps that are not captured run without a graph


@dataclass(frozen=True, slots=True)
class DecodeMemory:
    """Bytes of decoding steps. states: peak of one layer's attention. graphs: of all captured
    steps, which share their workspace."""

    states: int = 0
    graphs: int = 0

    @classmethod
    def of(
        cls,
        network: Network,
        dtype: str,
        config: EngineConfig,
        budget: MemoryBudget,
        specs: Seq[KVCacheSpec],
        longest: int,
    ) -> "DecodeMemory":
        """Return the memory of a run with a pool of the `budget` and rows up to `longest` tokens.

        dtype: of the model, torch's name. specs: of the pools. No graphs where none are captured.
        """
        tokens = budget.pool // max(sum(spec.bytes_per_token for spec in specs), 1)
        states = most_state_bytes(network.attention_heads, config, tokens, longest)
        if not network.is_capturable or config.enforce_eager:
            return cls(states)
        rows = config.max_num_seqs
        step = network.activation_bytes(DTYPE_BYTES[dtype], rows, rows) + states
        logits = 4 * rows * network.vocab_size  # the sampler's copy, where it makes one
        kept = min(_GRAPH_BYTES, budget.total // _MOST_KEPT)
        return cls(states, step + logits + kept)


def leave_for_decoding(
    budget: MemoryBudget,
    network: Network,
    dtype: str,
    config: EngineConfig,
    specs: Seq[KVCacheSpec],
    longest: int,
) -> MemoryBudget:
    """Return a budget with a pool that leaves the memory of decoding steps; arguments as in
    `DecodeMemory`. A pool in host memory leaves a fifth of it already, and has no graphs."""
    if not budget.is_filled:
        return budget
    needed = DecodeMemory.of(network, dtype, config, budget, specs, longest)
    most = int(budget.pool * _MOST_OF_POOL)
    states = min(needed.states, most)
    return budget.leaving(states, min(needed.graphs, most - states))


def most_state_bytes(
    attentions: Iterable[AttentionHeads], config: EngineConfig, pool_tokens: int, longest: int
) -> int:
    """Return the peak bytes of partial softmax states of rows in a pool of `pool_tokens` tokens.

    The longer the contexts, the more states each row has, and the fewer rows fit beside the shared
    prefix. Context lengths are powers of two, as in captured steps.
    """
    heads, most = list(attentions), 0
    num_tokens = _LEAST_TOKENS
    while num_tokens < 2 * max(min(longest, pool_tokens), _LEAST_TOKENS):
        least = num_tokens // 2 if num_tokens > _LEAST_TOKENS else 0
        room = (pool_tokens - least) // config.block_size
        num_rows = max(min(config.max_num_seqs, room), 1)
        most = max([most, *(state_bytes(each, num_rows, num_tokens) for each in heads)])
        num_tokens *= 2
    return most


def state_bytes(heads: AttentionHeads, num_rows: int, num_tokens: int) -> int:
    """Return the bytes of the states of a layer's attention: of rows of `num_tokens` tokens that
    read all of them together, and of the tokens that each reads alone."""
    per_state = 4 * heads.num_heads * (heads.head_dim + 2)
    num_units = -(-num_tokens // _UNIT_TOKENS)
    together = num_rows * (num_units + 1) if heads.window is None else 0
    num_own = -(-num_tokens // _OWN_TOKENS)
    alone = num_rows
    if heads.head_dim <= SINGLE_PASS_DIM:
        alone = min(num_rows, -(-FEW_PROGRAMS // heads.num_kv_heads))
    if heads.window is not None:
        num_own = min(num_own, -(-heads.window // _OWN_TOKENS) + 1)
    return (together + alone * num_own) * per_state
