"""Checks of a loaded Transformers model: agreement with Transformers alone, and row invariance.

Logits over paged KV memory must equal those of Transformers without a cache up to rounding;
otherwise the model is refused. Row invariance of matrix products and attention is guaranteed, but
the code of Transformers may call any other op of torch, and some compute the remainder of a
vectorized loop differently. That is undocumented, so it is probed: a difference proves the
dependence, agreement makes it unlikely.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pagedrun.kernels.attention_inputs import AttentionInputs, DecodeInputs, PrefillInputs
from pagedrun.paged.cache.kv_cache import CacheDevice, KVCache, KVMemory
from pagedrun.paged.models.model import ForwardBatch, GroupBatch, Model

BLOCK_SIZE = 16
NUM_ROWS = 8
ROW_TOKENS = 48
# Elements of the first row in a layer: enough for torch to split its loops among threads.
LONG_NUMBERS = 100_000
MAX_LONG = 1024


class ProbeChunk(NamedTuple):
    """Tokens `start` to `end` of a row: of its prompt, or one generated token."""

    row: int
    start: int
    end: int
    is_prompt: bool = True


class ProbeRun:
    """A model with `NUM_ROWS` rows of random tokens and a KV cache for them.

    Rows have `ROW_TOKENS` tokens, the first one `long_tokens`, at least as many; tokens are the
    same in every run.
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
    def hidden(self, chunks: Sequence[ProbeChunk]) -> list[Tensor]:
        """Return the final hidden states of chunks computed in one step, prompt chunks first.

        Each is [num_tokens, hidden_size].
        """
        batch = self._batch(chunks)
        hidden = self.model.hidden(batch, self._cache)
        return list(torch.split(hidden, [chunk.end - chunk.start for chunk in chunks]))

    def _batch(self, chunks: Sequence[ProbeChunk]) -> ForwardBatch:
        target = self._device.torch_device
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
        inputs = inputs.placed(lambda tensor: tensor.to(target))
        groups = tuple(
            GroupBatch(
                slots.to(target),
                self._device.kernels.prepare(
                    inputs, self.model.attention_shape(group, memory.blocks.dtype)
                ),
            )
            for group, memory in enumerate(self._cache.groups)
        )
        return ForwardBatch(
            input_ids=ids.to(target),
            positions=positions.to(target),
            num_prefill_tokens=num_prefill,
            groups=groups,
            logits_rows=torch.arange(len(rows), device=target),
        )


def random_row(row: int, num_tokens: int, vocab_size: int) -> Tensor:
    """Return the first tokens of a row, [num_tokens] int64, the same in every run."""
    generator = torch.Generator().manual_seed(row)
    return torch.randint(vocab_size, (num_tokens,), generator=generator)


def _int32(numbers: Tensor) -> Tensor:
    return numbers.to(torch.int32)


LENGTHS = (40, 15)  # of the compared rows
# Prompts in one and in two chunks; a generated token with a prompt, and with another one.
_COMPARED_STEPS = (
    (ProbeChunk(0, 0, 20), ProbeChunk(1, 0, 11)),
    (ProbeChunk(0, 20, 37), ProbeChunk(1, 11, 12, is_prompt=False)),
    *(
        (
            ProbeChunk(0, 37 + i, 38 + i, is_prompt=False),
            ProbeChunk(1, 12 + i, 13 + i, is_prompt=False),
        )
        for i in range(3)
    ),
)
# Maximum difference of a token's logits relative to the largest logit: sums have another order. In
# 16 bits it applies to half of the tokens, since rounding may select other experts for some.
MAX_DIFFERENCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class LogitsMismatch(Exception):
    """Logits with a cache differ from those without one."""


class LogitsComparison:
    """Differences of logits from expected ones, relative to the largest expected logit.

    expected: [num_tokens, vocab_size] float32 per row. where: origin of the logits, for messages.
    """

    def __init__(self, expected: Sequence[Tensor], where: str, dtype: torch.dtype) -> None:
        self._expected = expected
        self._where = where
        self._dtype = dtype
        self._largest = max(float(each.abs().max()) for each in expected)
        self._found: dict[bool, list[Tensor]] = {
            True: [],
            False: [],
        }  # prompt tokens, generated tokens

    def add(self, row: int, start: int, logits: Tensor, *, is_prompt: bool) -> None:
        """Compare logits [num_tokens, vocab_size] of a row from token `start` on."""
        wanted = self._expected[row][start : start + len(logits)]
        self._found[is_prompt].append((logits - wanted).abs().amax(1).cpu() / self._largest)

    def largest(self) -> float:
        """Return the largest difference.

        Raises `LogitsMismatch` if prompt tokens or generated ones differ by more than
        `MAX_DIFFERENCE`, or are NaN.
        """
        of_kinds = [torch.cat(each) for each in self._found.values()]
        most = MAX_DIFFERENCE[self._dtype]
        for each in of_kinds:
            share = float(each.max() if self._dtype is torch.float32 else each.median())
            if not share <= most:  # or NaN
                raise LogitsMismatch(
                    f"its logits {self._where} differ from those of Transformers alone by "
                    f"{share:.2g} of the largest, where at most {most:g} is rounding"
                )
        return float(torch.cat(of_kinds).max())


@torch.inference_mode()
def expected_logits(causal_lm: Any, vocab_size: int) -> list[Tensor]:
    """Return the logits of Transformers alone, without a cache and row by row.

    [num_tokens, vocab_size] float32 each.
    """
    ids = [random_row(row, length, vocab_size)[None] for row, length in enumerate(LENGTHS)]
    return [
        causal_lm(input_ids=each.to(causal_lm.device), use_cache=False)
        .logits[0, :, :vocab_size]
        .float()
        for each in ids
    ]


@torch.inference_mode()
def largest_difference(trial: ProbeRun, expected: Sequence[Tensor]) -> float:
    """Return the largest difference of logits over paged memory from the expected ones.

    Raises the `LogitsMismatch` of `LogitsComparison.largest`.
    """
    differences = LogitsComparison(expected, "over paged memory", trial.model.dtype)
    for chunks in _COMPARED_STEPS:
        for chunk, hidden in zip(chunks, trial.hidden(chunks), strict=True):
            logits = trial.model.head(hidden).float()
            differences.add(chunk.row, chunk.start, logits, is_prompt=chunk.is_prompt)
    return differences.largest()


_PROBE_PROMPT = 17
_PROBE_ROWS = (3, NUM_ROWS)
_PROBE_CUTS = (0, 5, 18)


def rows_depend_on_batch(trial: ProbeRun) -> bool:
    """Return true if a token got other bits with other rows, or in other chunks."""
    return not (_prompts_agree(trial) and _chunks_agree(trial) and _generated_agree(trial))


def _prompts_agree(trial: ProbeRun) -> bool:
    alone = [trial.hidden([ProbeChunk(row, 0, _PROBE_PROMPT)])[0] for row in range(NUM_ROWS)]
    return all(
        _same(trial.hidden([ProbeChunk(row, 0, _PROBE_PROMPT) for row in _rows(num)]), alone)
        for num in _PROBE_ROWS
    )


def _generated_agree(trial: ProbeRun) -> bool:
    """Compare the token after the prompts, which are in the cache."""
    at = _PROBE_PROMPT, _PROBE_PROMPT + 1
    alone = [trial.hidden([ProbeChunk(row, *at, is_prompt=False)])[0] for row in range(NUM_ROWS)]
    return all(
        _same(trial.hidden([ProbeChunk(row, *at, is_prompt=False) for row in _rows(num)]), alone)
        for num in _PROBE_ROWS
    )


def _chunks_agree(trial: ProbeRun) -> bool:
    end = trial.long_tokens
    [whole] = trial.hidden([ProbeChunk(0, 0, end)])
    borders = [*_PROBE_CUTS, max(end - 9, _PROBE_CUTS[-1] + 1), end]
    pairs = pairwise(borders)
    pieces = [trial.hidden([ProbeChunk(0, start, stop)])[0] for start, stop in pairs]
    return torch.equal(torch.cat(pieces), whole)


def _rows(num_rows: int) -> range:
    """Return the first rows in reverse: each at another batch position than alone."""
    return range(num_rows - 1, -1, -1)


def _same(together: list[Tensor], alone: list[Tensor]) -> bool:
    pairs = zip(reversed(together), alone, strict=False)  # missing rows are skipped
    return all(torch.equal(one, other) for one, other in pairs)
