"""GPU memory: what a step needs of it for a moment, and what is left for the pool."""

from collections.abc import Sequence as Seq

import torch

from pagedrun.kernels.attention.attention_inputs import AttentionInputs, PrefillInputs
from pagedrun.kernels.state_inputs import StateInputs
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.cache.kv_cache import KVCache, KVMemory, StateCache, StateObjects
from pagedrun.paged.execution.attention_shapes import attention_shapes
from pagedrun.paged.execution.batch_layout import BatchLayout, GroupLayout
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.models.model import Model
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.scheduling.sequence_table import NO_STATE

CHUNK_TOKENS = 512  # of the chunks that a step is measured with: what they attend to must exist


def gpu_budget(
    model: Model,
    device: Device,
    *,
    specs: Seq[KVCacheSpec],
    num_tokens: int,
    num_logits: int,
    utilization: float,
) -> MemoryBudget:
    """Measure the largest step and return what it leaves, in bytes.

    specs: of the pools. num_tokens, num_logits: of that step. utilization: the share of the
    device's memory, 0 to 1, that this process may fill; what others hold counts as filled.
    """
    activations = _measure_step(model, device, specs, num_tokens, num_logits)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device.torch_device)
    return MemoryBudget.of_device(
        total=total, free=free, activations=activations, utilization=utilization
    )


@torch.inference_mode()
def _measure_step(
    model: Model, device: Device, specs: Seq[KVCacheSpec], num_tokens: int, num_logits: int
) -> int:
    """Return the bytes that a step of new prompts takes besides weights and cache, at its peak."""
    block_size = 16
    width = -(-CHUNK_TOKENS // block_size)
    state_specs = model.state_specs()
    states: StateCache | StateObjects | None = None
    if any(spec.is_opaque for spec in state_specs):
        states = StateObjects(1, 0)
    elif state_specs:
        states = StateCache(state_specs, 1, 0, device)
    cache = KVCache([KVMemory(spec, block_size, width, 0, device) for spec in specs], states)
    starts = torch.tensor([*range(0, num_tokens, CHUNK_TOKENS), num_tokens], dtype=torch.int32)
    num_chunks = len(starts) - 1
    nowhere = torch.full((num_chunks,), NO_STATE, dtype=torch.int32)
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
    batch = BatchLayout(
        input_ids=torch.zeros(num_tokens, dtype=torch.int64),
        positions=positions,
        num_prefill_tokens=num_tokens,
        # All chunks write to the same blocks: what they hold does not matter.
        groups=(GroupLayout(positions, attention),) * len(specs),
        logits_rows=torch.arange(min(num_logits, num_tokens)),
        states=StateInputs(passed, starts, nowhere, nowhere) if state_specs else None,
    ).forward(device, attention_shapes(model, cache), None)
    torch.cuda.synchronize(device.torch_device)
    torch.cuda.reset_peak_memory_stats(device.torch_device)
    before = torch.cuda.memory_allocated(device.torch_device)
    hidden = model.hidden(batch, cache)
    logits = model.head(hidden).float()  # the sampler's copy, where it makes one
    torch.cuda.synchronize(device.torch_device)
    del hidden, logits
    return int(torch.cuda.max_memory_allocated(device.torch_device) - before)
