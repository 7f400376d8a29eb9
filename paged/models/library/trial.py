"""Trial: steps of a model over a small cache of its own, to see what it computes."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pagedrun.kernels.attention.attention_inputs import AttentionInputs, DecodeInputs, PrefillInputs
from pagedrun.paged.cache.kv_cache import CacheDevice, KVCache, KVMemory
from pagedrun.paged.models.forward_batch import ForwardBatch, GroupBatch
from pagedrun.paged.models.model import Model

BLOCK_SIZE = 16
NUM_ROWS = 8
ROW_TOKENS = 48
# Of the first row: enough numbers in a layer for torch to cut its loops into one for each thread.
LONG_NUMBERS = 100_000
MAX_LONG = 1024


class Chunk(NamedTuple):
    """Some tokens of a row: of its prompt, or one that was generated."""

    row: int
    start: int
    end: int
    is_prompt: bool = True


class Trial:
    """`NUM_ROWS` rows of random tokens, always the same ones.

    Each may have `ROW_TOKENS`, the first `long_tokens`, which is no less.
    """

    def __init__(self, model: Model, device: CacheDevice, hidden_size: int) -> None:
        self.model = model
        most = min(MAX_LONG, model.network.max_position_embeddings)
        self.long_tokens = max(min(LONG_NUMBERS // hidden_size, most), ROW_TOKENS)
        self._device = device
        lengths = [self.long_tokens, *[ROW_TOKENS] * (NUM_ROWS - 1)]
        num_blocks = [-(-length // BLOCK_SIZE) for length in lengths]
        specs = model.kv_cache_specs(str(model.dtype).removeprefix("torch."))
        self._cache = KVCache(
            [KVMemory(spec, BLOCK_SIZE, sum(num_blocks), 0, device) for spec in specs]
        )
        ids = torch.arange(sum(num_blocks), dtype=torch.int32)
        self._tables = nn.utils.rnn.pad_sequence(
            list(torch.split(ids, num_blocks)), batch_first=True
        )
        self._ids = [
            random_row(row, length, model.network.vocab_size) for row, length in enumerate(lengths)
        ]

    @torch.inference_mode()
    def hidden(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """Compute chunks in one step, those of prompts first; return what each gives.

        Of a chunk [num_tokens, hidden_size], what the head makes logits of.
        """
        batch = self._batch(chunks)
        hidden = self.model.hidden(batch, self._cache)
        return list(torch.split(hidden, [chunk.end - chunk.start for chunk in chunks]))

    def _batch(self, chunks: Sequence[Chunk]) -> ForwardBatch:
        place = self._device.torch_device
        positions = torch.cat([torch.arange(chunk.start, chunk.end) for chunk in chunks])
        rows = torch.cat([torch.full((each.end - each.start,), each.row) for each in chunks])
        ids = torch.cat([self._ids[each.row][each.start : each.end] for each in chunks])
        prompts = [chunk for chunk in chunks if chunk.is_prompt]
        lengths = torch.tensor([0, *(chunk.end - chunk.start for chunk in prompts)])
        num_prefill = int(lengths.sum())
        prefill = decode = None
        if prompts:
            prefill = PrefillInputs(
                _int32(lengths.cumsum(0)),
                _int32(torch.tensor([chunk.row for chunk in prompts])),
                _int32(torch.tensor([chunk.start for chunk in prompts])),
            )
        if num_prefill < len(rows):
            decode = DecodeInputs(_int32(rows[num_prefill:]), _int32(positions[num_prefill:] + 1))
        slots = self._tables[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE
        slots += positions % BLOCK_SIZE
        inputs = AttentionInputs(self._tables, num_prefill, prefill, decode)
        inputs = inputs.placed(lambda tensor: tensor.to(place))
        groups = tuple(
            GroupBatch(
                slots.to(place),
                self._device.kernels.prepare(
                    inputs, self.model.attention_shape(group, memory.blocks.dtype)
                ),
            )
            for group, memory in enumerate(self._cache.groups)
        )
        return ForwardBatch(
            input_ids=ids.to(place),
            positions=positions.to(place),
            num_prefill_tokens=num_prefill,
            groups=groups,
            logits_rows=torch.arange(len(rows), device=place),
        )


def random_row(row: int, num_tokens: int, vocab_size: int) -> Tensor:
    """Return the first tokens of a row, [num_tokens] int64: the same ones each time."""
    generator = torch.Generator().manual_seed(row)
    return torch.randint(vocab_size, (num_tokens,), generator=generator)


def _int32(numbers: Tensor) -> Tensor:
    return numbers.to(torch.int32)
