"""RunSizing: the memory of a run's pools, and what a planner has to know of it."""

from collections.abc import Container
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from pagedrun.kernels.attention.read_once import ReadOnce
from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.planning.earlier_answers import EarlierAnswers
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.planner import Planner, RequestLimits
from pagedrun.paged.planning.sizing.memory import MemoryBudget
from pagedrun.paged.planning.sizing.pool_demand import PoolDemand
from pagedrun.paged.planning.sizing.pool_sizing import PoolSizer
from pagedrun.paged.planning.sizing.pool_split import Sizes
from pagedrun.paged.planning.sizing.slot_sizing import SlotSizer, SlotSizes
from pagedrun.paged.planning.tree.stored_tokens import NO_ROOM, StoreRoom
from pagedrun.paged.values.deadline import Deadline
from pagedrun.paged.values.engine_config import EngineConfig

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
