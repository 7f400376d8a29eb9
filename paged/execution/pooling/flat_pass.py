"""Pass over texts of any length, one after the other in a flat batch without padding.

Attention reads the keys and values of a layer from memory that is kept while the layer computes.
Each text has blocks of its own in it, so that the kernels of prompts compute it; those of an
encoder attend to both sides. A text's bytes do not depend on the others.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from pagedrun.kernels.array_types import Int64s
from pagedrun.kernels.attention_inputs import AttentionInputs, PrefillInputs
from pagedrun.paged.cache.kv_cache import KVCache, KVMemory
from pagedrun.paged.execution.device import transferred
from pagedrun.paged.execution.forward_batch import attention_shapes
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.models.model import ForwardBatch, GroupBatch
from pagedrun.paged.models.pooler import Pooler, Rows
from pagedrun.paged.values.pooling import PooledText


class FlatPass:
    """Computes the vectors or scores of texts, a batch at a time.

    block_size: tokens of a block of the memory of a layer.
    """

    def __init__(self, loaded: LoadedModel, pooler: Pooler, block_size: int) -> None:
        self._loaded = loaded
        self._pooler = pooler
        self._block_size = block_size
        self._cache: KVCache | None = None
        self.most_tokens = 0

    @property
    def cache_bytes(self) -> int:
        """Bytes of the memory for the keys and values of a layer."""
        return 0 if self._cache is None else self._cache.num_bytes

    def release(self) -> None:
        """Free the memory for keys and values; the next call takes new one."""
        self._cache = None
        self._loaded.device.release_unused_memory()

    @torch.inference_mode()
    def __call__(self, texts: Sequence[PooledText]) -> Rows:
        """Return the results of texts, [num_texts, size]."""
        lengths = np.array([len(each.token_ids) for each in texts], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        self.most_tokens = max(self.most_tokens, int(starts[-1]))
        cache = self._cache_for(int((-(-lengths // self._block_size)).sum()))
        skipped = np.array([each.num_skipped for each in texts], dtype=np.int64)
        batch = self._batch(texts, starts, skipped, cache)
        return self._pooler(self._loaded.model.hidden(batch, cache), starts, skipped)

    def _cache_for(self, num_blocks: int) -> KVCache:
        """Return memory of at least `num_blocks` blocks; a larger one replaces a smaller one."""
        if self._cache is None or self._cache.groups[0].num_blocks < num_blocks:
            self._cache = None  # freed first: both may not fit
            loaded = self._loaded
            specs = loaded.model.kv_cache_specs(str(loaded.dtype).removeprefix("torch."))
            self._cache = KVCache(
                [
                    KVMemory(
                        replace(each, is_transient=True),
                        *(self._block_size, num_blocks, 0, loaded.device),
                    )
                    for each in specs
                ]
            )
        return self._cache

    def _batch(
        self, texts: Sequence[PooledText], starts: Int64s, skipped: Int64s, cache: KVCache
    ) -> ForwardBatch:
        """Return the batch of texts on the device; starts: offsets of the texts.

        skipped: tokens at the beginning of each that poolings leave out.
        """
        loaded, size = self._loaded, self._block_size
        network, device = loaded.config.network, loaded.device
        lengths = np.diff(starts)
        text_of = np.repeat(np.arange(len(texts)), lengths)
        positions = np.arange(starts[-1]) - starts[:-1][text_of]
        num_blocks = -(-lengths // size)
        first_blocks = np.cumsum(num_blocks) - num_blocks
        width = int(num_blocks.max())
        tables = first_blocks[:, None] + np.minimum(np.arange(width), num_blocks[:, None] - 1)
        slots = first_blocks[text_of] * size + positions
        input_ids = np.concatenate([np.array(each.token_ids, np.int64) for each in texts])
        types = None
        if any(each.num_first < len(each.token_ids) for each in texts):
            firsts = np.array([each.num_first for each in texts], dtype=np.int64)
            types = torch.from_numpy((positions >= firsts[text_of]).astype(np.int64))
        attention = AttentionInputs(
            torch.from_numpy(tables.astype(np.int32)),
            int(starts[-1]),
            PrefillInputs(
                torch.from_numpy(starts.astype(np.int32)),
                torch.arange(len(texts), dtype=torch.int32),
                torch.zeros(len(texts), dtype=torch.int32),
                is_causal=getattr(network, "is_causal", True),
            ),
        )
        numbers = [input_ids, positions, slots, self._pooler.rows_of(starts, skipped)]
        (ids, places, slots_there, rows), types_there, inputs = transferred(
            device,
            lambda place: (
                [place(torch.from_numpy(each)) for each in numbers],
                None if types is None else place(types),
                attention.placed(place),
            ),
        )
        groups = tuple(
            GroupBatch(slots_there, device.kernels.prepare(inputs, shape))
            for shape in attention_shapes(loaded.model, cache)
        )
        return ForwardBatch(ids, places, int(starts[-1]), groups, rows, token_types=types_there)
