"""Device memory of a run: allocation of the pools, measurement of the budget, and the ledger.

On a GPU the pool fills the device and graphs contain its addresses, so that there is one pool at a
time and the next run of the same sizes reuses it. The largest step is measured before the pool is
sized. On a CPU each run allocates what it needs.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import torch

from pagedrun.kernels.attention_inputs import AttentionInputs, PrefillInputs
from pagedrun.kernels.op_values import StateInputs
from pagedrun.paged.cache.block_pool import SwapSpace
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.cache.kv_cache import KVCache, KVMemory, OpaqueStates, StateCache
from pagedrun.paged.cache.swap_memory import Allocate, on_disk
from pagedrun.paged.execution.decode_graphs import DecodeGraphs
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.forward_batch import attention_shapes
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.metrics.report_sections import LedgerFigures, WeightFigures, weight_figures
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.linear_layers import LinearLayers
from pagedrun.paged.models.model import PIECE_TOKENS, ForwardBatch, GroupBatch, Model
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.planning.pool_sizing import SlotSizes
from pagedrun.paged.scheduling.sequence_table import NO_STATE
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError, option


@dataclass(frozen=True, slots=True)
class _Held:
    """Cache and graphs of the last run, with the sizes that they were made for."""

    made_for: tuple[object, ...]
    cache: KVCache
    graphs: DecodeGraphs | None


class PoolMemory:
    """Allocates the cache and the graphs of runs, one run at a time.

    On a GPU a pool fills the available memory and graphs contain its addresses, so that the next
    run of the same sizes reuses both. On a CPU each run gets new pools.
    """

    def __init__(
        self,
        model: Model,
        sampler: Sampler,
        device: Device,
        budget: MemoryBudget | None = None,
    ) -> None:
        """budget: memory of the pools; None measures the device."""
        self._model = model
        self._sampler = sampler
        self._device = device
        self._budget = budget
        self._held: _Held | None = None

    def budget(self, config: EngineConfig, specs: Seq[KVCacheSpec]) -> MemoryBudget:
        """Return the memory of the pools; on a GPU as measured before the first pool."""
        if self._budget is None:
            if not self._device.has_own_memory:
                return MemoryBudget.of_host(taken=self._model.mapped_bytes)
            num_tokens, between_layers = config.max_num_batched_tokens, 0
            if self._model.streamed is not None:  # computed in pieces, layer by layer
                network = self._model.network
                assert isinstance(network, DecoderSpec), "another library streams no weights"
                between_layers = num_tokens * network.hidden_bytes(self._model.dtype.itemsize)
                num_tokens = min(num_tokens, PIECE_TOKENS)
            self._budget = gpu_budget(
                self._model,
                self._device,
                specs=specs,
                num_tokens=num_tokens,
                num_logits=config.max_num_seqs,
                between_layers=between_layers,
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
        """Return the cache with `num_blocks` blocks of each group of layers and the slots of
        recurrent layers, and the decode graphs of a device that captures steps, which may take
        `graph_room` bytes. Steps of recurrent layers are not captured."""
        size = config.block_size
        bytes_per_token = sum(spec.bytes_per_token for spec in specs)
        swap_space_bytes = config.swap_space_bytes - (0 if slots is None else slots.host_bytes)
        num_host_blocks = SwapSpace.num_blocks_in(swap_space_bytes, bytes_per_token * size)
        streams = self._model.streamed is not None  # the host launches copies during a step
        graphed = self._device.graphs and self._model.network.is_capturable and not streams
        eager = config.enforce_eager or not graphed
        made_for = (*specs, size, *num_blocks, num_host_blocks, config.prefix_once, eager, slots)
        if self._held is not None and self._held.made_for == made_for:
            if self._held.graphs is not None:
                self._held.graphs.begin_run()
            return self._held.cache, self._held.graphs
        if self._held is not None:
            self._held = None  # freed first: both may not fit
            self._device.release_unused_memory()
        to_swap = None if config.swap_dir is None else self._on_disk(Path(config.swap_dir))
        try:
            cache = KVCache(
                [
                    KVMemory(spec, size, count, num_host_blocks, self._device, to_swap)
                    for spec, count in zip(specs, num_blocks, strict=True)
                ],
                None if slots is None else self._states(slots, to_swap),
            )
        except torch.OutOfMemoryError as error:
            raise UsageError(
                f"the GPU has no room any more for a KV pool of {sum(num_blocks)} blocks: another "
                "process, or an earlier run that was not finished, holds memory that was free when "
                f"the model was loaded; end it, or pass a smaller {option('kv_cache_memory_bytes')}"
            ) from error
        except RuntimeError as error:
            if "DefaultCPUAllocator" not in str(error):  # torch has no error class for host memory
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

    def _on_disk(self, folder: Path) -> Allocate:
        if self._device.pins_host_memory:
            raise UsageError(
                f"{option('swap_dir')}: a GPU swaps to the memory of the host; leave it out"
            )
        return on_disk(folder)

    def _states(self, slots: SlotSizes, to_swap: Allocate | None) -> StateCache | OpaqueStates:
        if slots.are_opaque:
            return OpaqueStates(slots.num_slots, slots.bytes_per_slot)
        specs = self._model.state_specs()
        return StateCache(specs, slots.num_slots, slots.num_host_slots, self._device, to_swap)


CHUNK_TOKENS = 512  # size of the chunks of a measured step, for which blocks are allocated


def gpu_budget(
    model: Model,
    device: Device,
    *,
    specs: Seq[KVCacheSpec],
    num_tokens: int,
    num_logits: int,
    between_layers: int,
    utilization: float,
) -> MemoryBudget:
    """Measure the largest step and return the remaining memory, in bytes.

    specs: of the pools. num_tokens, num_logits: of that step, or of its largest piece.
    between_layers: bytes of the hidden states of all pieces. utilization: the share of the device's
    memory, 0 to 1, that may be filled, memory of other processes included.
    """
    activations = _measure_step(model, device, specs, num_tokens, num_logits) + between_layers
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device.torch_device)
    return MemoryBudget.of_device(
        total=total, free=free, activations=activations, utilization=utilization
    )


@torch.inference_mode()
def _measure_step(
    model: Model, device: Device, specs: Seq[KVCacheSpec], num_tokens: int, num_logits: int
) -> int:
    """Return the peak bytes of a step of new prompts, besides weights and cache."""
    block_size = 16
    width = -(-CHUNK_TOKENS // block_size)
    state_specs = model.state_specs()
    states: StateCache | OpaqueStates | None = None
    if any(spec.is_opaque for spec in state_specs):
        states = OpaqueStates(1, 0)
    elif state_specs:
        states = StateCache(state_specs, 1, 0, device)
    cache = KVCache([KVMemory(spec, block_size, width, 0, device) for spec in specs], states)
    starts = torch.tensor([*range(0, num_tokens, CHUNK_TOKENS), num_tokens], dtype=torch.int32)
    num_chunks = len(starts) - 1
    nowhere = torch.full((num_tokens,), NO_STATE, dtype=torch.int32)
    passed = torch.arange(num_tokens, dtype=torch.int32)
    positions = torch.arange(num_tokens) % CHUNK_TOKENS
    attention = AttentionInputs(
        block_tables=torch.arange(width, dtype=torch.int32).repeat(num_chunks, 1),
        num_prefill_tokens=num_tokens,
        prefill=PrefillInputs(
            chunk_starts=starts,
            table_rows=torch.arange(num_chunks, dtype=torch.int32),
            first_positions=torch.zeros(num_chunks, dtype=torch.int32),
        ),
    )
    place = device.place
    batch = ForwardBatch(
        input_ids=place(torch.zeros(num_tokens, dtype=torch.int64)),
        positions=place(positions),
        num_prefill_tokens=num_tokens,
        # All chunks write to the same blocks: their contents do not matter.
        groups=tuple(
            GroupBatch(place(positions), device.kernels.prepare(attention.placed(place), shape))
            for shape in attention_shapes(model, cache)
        ),
        logits_rows=place(torch.arange(min(num_logits, num_tokens))),
        states=(
            StateInputs(passed, starts, nowhere[:num_chunks], nowhere).placed(place)
            if state_specs
            else None
        ),
    )
    torch.cuda.synchronize(device.torch_device)
    torch.cuda.reset_peak_memory_stats(device.torch_device)
    before = torch.cuda.memory_allocated(device.torch_device)
    hidden = model.hidden(batch, cache)
    logits = model.head(hidden).float()  # the sampler's copy, where it makes one
    torch.cuda.synchronize(device.torch_device)
    del hidden, logits
    return int(torch.cuda.max_memory_allocated(device.torch_device) - before)


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Sums up the memory of a run; `budget`: the one its pool was sized by.

    `stored_weight_bytes`: size of the weights in their files, None without files. `linears`: linear
    layers of the model. `graphs`: of the run, None without.
    """

    model: Model
    cache: KVCache
    device: Device
    budget: MemoryBudget
    stored_weight_bytes: int | None
    linears: LinearLayers
    graphs: DecodeGraphs | None = None

    @property
    def weights(self) -> WeightFigures:
        """The report's `weights` object."""
        count, held = self.model.network.num_weights, self.model.num_bytes
        return weight_figures(count, self.stored_weight_bytes, held, self.linears.counts)

    def report(
        self, peak_blocks: Seq[int], peak_slots: int, step_tokens: int, step_logits: int
    ) -> LedgerFigures:
        """Return the report's `memory` object, in bytes.

        peak_blocks: the maximum number of held blocks in the pool of each group. peak_slots: the
        same for states of recurrent layers. step_tokens, step_logits: of the largest step. `other`
        is the peak use of the process beyond weights, activations, pool and states. On the host
        only the touched part of a pool counts as used.
        """
        weights = self.model.num_bytes
        activations = self.budget.activations  # measured, or estimated from the largest step
        if activations is None:
            activations = self.model.activation_bytes(step_tokens, step_logits)
        pools = zip(self.cache.groups, peak_blocks, strict=True)
        touched = sum(memory.bytes_per_block * count for memory, count in pools)
        held = self.device.bytes_held(self.cache.num_bytes, touched)
        states = self.cache.states
        if states is not None:
            touched = states.bytes_per_slot * peak_slots
            held += self.device.bytes_held(states.num_bytes, touched)
        in_graphs = 0 if self.graphs is None else self.graphs.num_bytes
        in_use = self.device.bytes_in_use()
        figures: LedgerFigures = {
            "weights": weights,
            "kv_pool": self.cache.num_bytes,
            "activations_peak": activations,
            "other": max(in_use - weights - activations - held - in_graphs, 0),
            "device_total": self.budget.total,
        }
        if states is not None:
            figures["states"] = states.num_bytes
        if self.budget.is_filled:
            figures["graphs"] = in_graphs
            figures["decoding_room"] = self.budget.decode_states + self.budget.graphs
        return figures
