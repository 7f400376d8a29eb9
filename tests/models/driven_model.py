"""A model driven step by step without an engine: chunks in, logits out, states in a cache."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.op_values import StateInputs
from pagedrun.paged.cache.kv_cache import KVCache, KVMemory, StateCache
from pagedrun.paged.execution.forward_batch import attention_shapes, forward_batch
from pagedrun.paged.execution.prefix_sharing import PrefixSharing
from pagedrun.paged.scheduling.step_input import StepInput
from pagedrun.paged.values.engine_config import EngineConfig
from tests.support.engines import load_engine
from tests.support.made_step import MadeChunk, made_step

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Part:
    """Tokens `[start, end)` of a sequence that has a number, hence blocks and a slot of its own.

    read: the slot that they go on from, None for its own.
    """

    sequence: int
    prompt: Sequence[int]
    output: Sequence[int]
    start: int
    end: int
    read: int | None = None


class DrivenModel:
    """A folder's model with room for `num_sequences` of `num_tokens` tokens."""

    def __init__(
        self, folder: Path, num_sequences: int, num_tokens: int = 512, dtype: str = "float32"
    ) -> None:
        loaded = load_engine(EngineConfig(model=folder, dtype=dtype, device="cpu")).loaded
        self.model, self._device, self._dtype = loaded.model, loaded.device, dtype
        self._width = num_tokens // BLOCK_SIZE
        num_blocks = num_sequences * self._width
        groups = [
            KVMemory(spec, BLOCK_SIZE, num_blocks, 0, loaded.device)
            for spec in self.model.kv_cache_specs(dtype)
        ]
        self.states = StateCache(self.model.state_specs(), num_sequences, 0, loaded.device)
        for layer in range(len(self.model.state_specs())):
            for array in self.states.layer(layer):
                array.fill_(torch.nan)  # what nothing wrote, nothing may read
        self._cache = KVCache(groups, self.states)

    @torch.inference_mode()
    def step(self, *parts: Part) -> Tensor:
        """Return the logits of the parts that end with their sequences' last tokens."""
        step = made_step(*(self._chunk(each) for each in parts))
        specs = self.model.kv_cache_specs(self._dtype)
        step = replace(step, block_tables=step.block_tables * len(specs))
        shapes = attention_shapes(self.model, self._cache)
        sharing = PrefixSharing(share=False)
        batch, _ = forward_batch(step, BLOCK_SIZE, specs, shapes, sharing, self._device)
        batch = replace(batch, states=inputs(step, parts))
        return self.model.head(self.model.hidden(batch, self._cache))

    def _chunk(self, part: Part) -> MadeChunk:
        blocks = range(part.sequence * self._width, (part.sequence + 1) * self._width)
        return MadeChunk(part.prompt, part.output, list(blocks), part.start, part.end)


def inputs(step: StepInput, parts: Sequence[Part]) -> StateInputs:
    """Return which of a batch's tokens are each part's: prompt tokens come first."""
    lengths = step.ends - step.starts
    rows = np.repeat(np.arange(step.num_chunks), lengths)
    offsets = np.cumsum(lengths) - lengths
    positions = np.arange(step.num_tokens) + (step.starts - offsets)[rows]
    order = np.argsort(positions >= step.num_prompt_tokens[rows], kind="stable")

    def read(part: Part) -> int:
        own = -1 if part.start == 0 else part.sequence
        return own if part.read is None else part.read

    writes = np.full(step.num_tokens, -1)
    writes[offsets + lengths - 1] = [part.sequence for part in parts]
    return StateInputs(
        torch.from_numpy(np.argsort(order)).int(),
        torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        torch.tensor([read(part) for part in parts], dtype=torch.int32),
        torch.from_numpy(writes).int(),
    )
