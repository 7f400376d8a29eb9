"""PoolMemory: the tensors behind a run's pool, and the graphs that were captured over them."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from pagedrun.paged.cache.block_pool import SwapSpace
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.cache.kv_cache import KVCache, KVMemory, StateCache, StateObjects
from pagedrun.paged.execution.decode_graphs.decode_graphs import DecodeGraphs
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.devices.gpu_memory import gpu_budget
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.models.model import Model
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.planning.pool_sizing import SlotSizes
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError, option


@dataclass(frozen=True, slots=True)
class _Held:
    """What the last run had, and for which it was made."""

    made_for: tuple[object, ...]
    cache: KVCache
    graphs: DecodeGraphs | None


class PoolMemory:
    """Makes a run's cache and graphs; on a GPU the next run of the same sizes gets them again.

    There a pool fills what the device has for it, so there cannot be two, and a graph knows the
    addresses of the one it was captured over. One run at a time, then. On a CPU every run has its
    own, as large as it needs.
    """

    def __init__(
        self,
        model: Model,
        sampler: Sampler,
        device: Device,
        budget: MemoryBudget | None = None,
    ) -> None:
        """Take what `budget` allows; None looks at what the device has."""
        self._model = model
        self._sampler = sampler
        self._device = device
        self._budget = budget
        self._held: _Held | None = None

    def budget(self, config: EngineConfig, specs: Seq[KVCacheSpec]) -> MemoryBudget:
        """Return what the pools may take; on a GPU as it was before there was any."""
        if self._budget is None:
            if not self._device.has_own_memory:
                return MemoryBudget.of_host(taken=self._model.mapped_bytes)
            self._budget = gpu_budget(
                self._model,
                self._device,
                specs=specs,
                num_tokens=config.max_num_batched_tokens,
                num_logits=config.max_num_seqs,
                utilization=config.gpu_memory_utilization,
            )
        return self._budget

    def take(
        self,
        config: EngineConfig,
        specs: Seq[KVCacheSpec],
        num_blocks: Seq[int],
        slots: SlotSizes | None = None,
        *,
        graph_room: int | None = None,
    ) -> tuple[KVCache, DecodeGraphs | None]:
        """Return memory for so many blocks of each group of layers and, where steps are captured,
        their graphs, which may take `graph_room` bytes if that is given; and for the `slots` of
        recurrent layers, whose steps are not captured."""
        size = config.block_size
        bytes_per_token = sum(spec.bytes_per_token for spec in specs)
        swap_space_bytes = config.swap_space_bytes - (0 if slots is None else slots.host_bytes)
        num_host_blocks = SwapSpace.num_blocks_in(swap_space_bytes, bytes_per_token * size)
        graphed = self._device.graphs and self._model.network.is_capturable
        eager = config.enforce_eager or not graphed
        made_for = (*specs, size, *num_blocks, num_host_blocks, config.prefix_once, eager, slots)
        if self._held is not None and self._held.made_for == made_for:
            return self._held.cache, self._held.graphs
        if self._held is not None:
            self._held = None  # first, or both would have to fit
            self._device.release_unused_memory()
        try:
            cache = KVCache(
                [
                    KVMemory(spec, size, count, num_host_blocks, self._device)
                    for spec, count in zip(specs, num_blocks, strict=True)
                ],
                None if slots is None else self._states(slots),
            )
        except RuntimeError as error:
            if "DefaultCPUAllocator" not in str(error):  # the host's has no class of its own
                raise
            raise UsageError(
                f"the host has no room for a KV pool of {sum(num_blocks)} blocks and "
                f"{option('swap_space_bytes')} {config.swap_space_bytes}; pass less"
            ) from error
        graphs = None
        if not eager:
            graphs = DecodeGraphs(
                self._model,
                cache,
                self._sampler,
                self._device,
                shared_prefix_attention=config.prefix_once,
                capture=self._device.captures,
                room=graph_room,
            )
        if self._device.has_own_memory:
            self._held = _Held(made_for, cache, graphs)
        return cache, graphs

    def _states(self, slots: SlotSizes) -> StateCache | StateObjects:
        if slots.are_opaque:
            return StateObjects(slots.num_slots, slots.bytes_per_slot)
        specs = self._model.state_specs()
        return StateCache(specs, slots.num_slots, slots.num_host_slots, self._device)
