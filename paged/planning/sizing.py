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
from typing import Any

from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.models.network import AttentionHeads, Network
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.planning.plan import EarlierAnswers, Plan
from pagedrun.paged.planning.planner import Planner, RequestLimits
from pagedrun.paged.planning.pool_sizing import PoolDemand, PoolSizer, Sizes, SlotSizer, SlotSizes
from pagedrun.paged.planning.prefix_reuse import NO_ROOM, StoreRoom
from pagedrun.paged.values.engine_config import DTYPE_BYTES, Deadline, EngineConfig

RunSizes = tuple[Sizes, SlotSizes | None]


@dataclass(frozen=True, slots=True)
class PlanBasis:
    """What a planner has to know of the engine that runs its windows; can be pickled.

    `max_blocks` is the most blocks that the engine's pool can have, each of `block_size` tokens,
    which may have been fitted to its device. `windows` are those of its groups of layers that have
    one. The rest is as `Planner` has it.
    """

    limits: RequestLimits
    max_blocks: int
    block_size: int
    read_once: ReadOnce
    store_room: StoreRoom = NO_ROOM
    keeps_states: bool = False
    windows: tuple[int, ...] = ()

    def planner(
        self,
        config: EngineConfig,
        done: Container[int] = frozenset(),
        earlier: EarlierAnswers | None = None,
        deadline: Deadline | None = None,
    ) -> Planner:
        """Return a planner for this engine; `config` is the engine's, the others are the file's."""
        return Planner(
            config,
            self.limits,
            max_blocks=self.max_blocks,
            read_once=self.read_once,
            done=done,
            earlier=earlier,
            store_room=self.store_room,
            keeps_states=self.keeps_states,
            sample_seed=None if deadline is None else deadline.seed,
        )


class RunSizing:
    """Sizes the pools and slots of one run within a budget."""

    def __init__(
        self,
        config: EngineConfig,
        specs: Seq[KVCacheSpec],
        budget: MemoryBudget,
        max_model_len: int,
        *,
        bytes_per_slot: int,
        are_opaque: bool,
    ) -> None:
        """bytes_per_slot, are_opaque: see `SlotSizer`. Raises `UsageError` if the budget has no
        room for one sequence, or none of the length that was asked for."""
        self.budget = budget
        self._states = SlotSizer(config, bytes_per_slot, budget, are_opaque=are_opaque)
        self._pools = PoolSizer(config, specs, self._states.rest, max_model_len)
        self._pools.check_max_model_len()

    @property
    def max_blocks(self) -> int:
        """The most blocks that the pool can have."""
        return self._pools.most

    @property
    def max_beam_width(self) -> int | None:
        """The most beams that a row can have, None if nothing forbids any."""
        return self._states.max_beam_width

    def sizes(self, first: Plan, *, is_whole: bool) -> RunSizes:
        """Return what a file needs that begins with the window `first`, and is that if `is_whole`.

        Raises `UsageError` where `PoolSizer.sizes` does.
        """
        pools = self._pools.sizes(first, is_whole=is_whole)
        return pools, self._states.sizes(first, is_whole=is_whole)

    def sizes_for(self, demand: PoolDemand) -> RunSizes:
        """Return what rows need of which no more is known than that."""
        return self._pools.sizes_for(demand), self._states.most()

    @property
    def windows(self) -> tuple[int, ...]:
        """Those of the groups of layers that have one."""
        return self._pools.windows


GPU_BLOCK_SIZE = 64  # tokens
GPU_REFILL_SHARE = 1 / 16
# Tokens of a step by what the memory is sold as: with less, what a step needs for a moment takes
# too large a part of it.
_BATCHED_TOKENS = ((70 * 10**9, 16_384), (23 * 10**9, 8_192), (0, 4_096))
LEAST_SEATS, MOST_SEATS = 64, 1_024
_SEATS_ALIKE = 64  # steps are captured for multiples of so many rows


def fitted_to_device(config: EngineConfig, memory_bytes: int | None) -> EngineConfig:
    """Return the configuration with what of it is to be fitted as it suits a device.

    memory_bytes: of the device's own memory, None for a processor. Seats are the most there can be
    until the plan is known: see `fitted_to_plan`.
    """
    if memory_bytes is None:
        return config
    tokens = next(tokens for least, tokens in _BATCHED_TOKENS if memory_bytes >= least)
    fitted: dict[str, Any] = {
        "block_size": GPU_BLOCK_SIZE,
        "max_num_seqs": MOST_SEATS,
        "max_num_batched_tokens": tokens,
        "refill_share": GPU_REFILL_SHARE,
    }
    return replace(config, **{name: fitted[name] for name in config.fitted if name in fitted})


def fitted_to_plan(
    config: EngineConfig, memory_bytes: int | None, first: Plan, num_blocks: int
) -> EngineConfig:
    """Return the configuration with as many seats as a pool holds rows of a file, if they are to be
    fitted.

    first: the plan of the file's first window. num_blocks: of the pool.
    """
    if memory_bytes is None or not len(first):
        return config
    demand = PoolDemand.of(first, (), is_whole=False)
    return fitted_to_demand(config, memory_bytes, demand, num_blocks)


def fitted_to_demand(
    config: EngineConfig, memory_bytes: int | None, demand: PoolDemand, num_blocks: int
) -> EngineConfig:
    """Return what `fitted_to_plan` does for a plan that is elsewhere, of which this is known.

    Rows are reckoned with at the length that their answers may have, on average: which of them run
    together is for the predictor of output lengths to say.
    """
    if memory_bytes is None or "max_num_seqs" not in config.fitted:
        return config
    shared = min(demand.num_shared, num_blocks) * config.prefix_caching
    held = int((num_blocks - shared) / demand.mean)
    seats = held // _SEATS_ALIKE * _SEATS_ALIKE
    return replace(config, max_num_seqs=min(max(seats, LEAST_SEATS), MOST_SEATS))


# As the kernels of `pagedrun.kernels.gpu.attention` have them: a test compares.
_UNIT_TOKENS = 1024  # keys of a prefix that give one state
_OWN_TOKENS = 512  # keys of a row's own that do
SINGLE_PASS_DIM = 256  # heads up to this size need no states of a row's own, given many rows
FEW_PROGRAMS = 2 * 304  # what are not many rows times kv heads, on the largest GPU there is
_LEAST_TOKENS = 2048  # of the block tables that captured steps have
# For what a driver and torch's allocator keep besides. Nobody has measured it yet.
_GRAPH_BYTES = 128 * 2**20
_MOST_KEPT = 64  # of a small memory one part in so many
_MOST_OF_POOL = 0.5  # of what the pool would have: what is captured beyond is computed as well


@dataclass(frozen=True, slots=True)
class DecodeMemory:
    """Bytes. states: of one layer's attention at its most. graphs: of all captured steps, which
    share what they compute with."""

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
        """Return what a run may need whose pool has the `budget` and holds rows up to `longest`.

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
    """Return a budget whose pool leaves what steps that decode need; arguments as `DecodeMemory`
    has them. A pool in the host's memory leaves a fifth of it already, and has no graphs."""
    if not budget.is_filled:
        return budget
    needed = DecodeMemory.of(network, dtype, config, budget, specs, longest)
    most = int(budget.pool * _MOST_OF_POOL)
    states = min(needed.states, most)
    return budget.leaving(states, min(needed.graphs, most - states))


def most_state_bytes(
    attentions: Iterable[AttentionHeads], config: EngineConfig, pool_tokens: int, longest: int
) -> int:
    """Return the most bytes of states that rows in a pool of so many tokens can leave.

    The longer their contexts are, the more states each has, and the fewer rows there are beside
    what they share. Contexts are reckoned with at powers of two, as captured steps have room.
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
    """Return the bytes of the states that a layer's attention leaves: of rows of so many tokens
    that all read them together, and of what each reads for itself."""
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
