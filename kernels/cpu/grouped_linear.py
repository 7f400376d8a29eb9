"""Row-invariant linear layers of many experts.

Inputs are in blocks of sixteen rows, interleaved. A weight is a row-major matrix [num_columns,
num_k] passed by its address: it is never copied as a whole, so a mapped file stays mapped and the
weight of an unused expert is not read. A panel is 32 outputs of a weight.

Two ways to multiply, on any processor (`multiply_fma`) and on AMX tiles (`multiply_tiles`, where
the weight is the left operand: sixteen of its rows are a tile as they lie in a file). In both, each
output is one chain over k in ascending order; see `pagedrun.kernels.cpu.linears.amx_linear`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import choose_threads, inlined, kernel, num_threads
from pagedrun.kernels.cpu.linears.panel_product import cut_panels, next_panels
from pagedrun.kernels.cpu.recording import values_are_read
from pagedrun.kernels.cpu.simd import amx, block_product
from pagedrun.kernels.cpu.simd.arrays import aligned_empty, aligned_floats, aligned_zeros
from pagedrun.kernels.cpu.simd.lanes import load
from pagedrun.kernels.cpu.simd.words import transpose_words, write_lanes
from pagedrun.kernels.kernel_set import KernelSet


class PackedGroupedLinear:
    """`y = x @ weight[e].T + bias[e]`; see the reference.

    weights: float32 or bfloat16. Nothing is copied: matrices are read in place, so those of
    a mapped file take memory as they are used. One call computes all experts, spread over
    threads by columns. Products are those of `kernel_set`, None for the processor's best.
    """

    row_invariant = True

    def __init__(
        self,
        weights: Sequence[Sequence[Tensor]],
        bias: Tensor | None = None,
        kernel_set: KernelSet | None = None,
    ) -> None:
        self._weights = [[matrix.contiguous() for matrix in part] for part in weights]
        self.num_experts = len(weights[0])
        self._columns_of_part, self.in_features = weights[0][0].shape
        self.out_features = len(weights) * self._columns_of_part
        self._bias = weights[0][0].new_empty(0, 0) if bias is None else bias.contiguous()
        self.num_bytes = sum(matrix.nbytes for part in weights for matrix in part)
        self.num_bytes += self._bias.nbytes
        self._addresses = _addresses(self._weights)
        is_bfloat16 = weights[0][0].dtype is torch.bfloat16
        kernel_set = KernelSet.usable(kernel_set)
        self._is_tiles = is_bfloat16 and kernel_set is KernelSet.AMX
        self._is_pairs = is_bfloat16 and kernel_set is not KernelSet.PORTABLE
        self._like = np.empty(0, np.uint16 if is_bfloat16 else np.float32)
        self._operand_like = self._like if self._is_pairs else np.empty(0, np.float32)

    def __getstate__(self) -> dict[str, Any]:
        """Return all but addresses."""
        return {name: each for name, each in self.__dict__.items() if name != "_addresses"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._addresses = _addresses(self._weights)

    def arrays_of(self, expert: int) -> list[NDArray[np.uint8]]:
        """See `OfExperts`."""
        return [part[expert].view(-1).view(torch.uint8).numpy() for part in self._weights]

    def __call__(self, x: Tensor, starts: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Map rows to [num_rows, out_features], in the dtype of x."""
        values_are_read()
        out = torch.empty(len(x if tokens is None else tokens), self.out_features, dtype=x.dtype)
        blocks = ExpertBlocks.of(
            as_array(x.contiguous()),
            starts.numpy(),
            None if tokens is None else tokens.numpy(),
            pairs=self._is_pairs,
        )
        choose_threads(len(blocks.experts) * self.out_features * self.in_features)
        multiply = multiply_tiles if self._is_tiles else multiply_fma
        multiply(
            num_threads(),
            self._addresses,
            self._like,
            as_array(self._bias),
            amx.FULL_TILES if self._is_tiles else self._operand_like,
            self._columns_of_part,
            self.in_features,
            blocks.experts,
            blocks.starts,
            blocks.ends,
            blocks.first_blocks,
            blocks.inputs,
            as_array(out),
        )
        return out


def _addresses(weights: Sequence[Sequence[Tensor]]) -> NDArray[np.int64]:
    """Return the address of each expert's matrices, [num_experts, num_parts]."""
    addresses = [[matrix.data_ptr() for matrix in part] for part in weights]
    return np.ascontiguousarray(np.array(addresses, np.int64).T)


ROWS = 16  # of a block
STEP = 32  # inputs have zeros up to a multiple of it


@dataclass(frozen=True, slots=True)
class ExpertBlocks:
    """Blocks of rows of one expert each, for the experts with rows.

    Used expert u is `experts[u]`; its blocks are `first_blocks[u] .. first_blocks[u + 1] - 1`, and
    it computes rows `starts[u] .. ends[u] - 1`. The last of its blocks may have lanes without a
    row, which hold zeros.

    inputs: [num_blocks, in_features, 16] float32, or [num_blocks, in_features / 2, 16] words of two
    bfloat16, in_features rounded up to a multiple of 32. The rest: int64.
    """

    experts: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    first_blocks: NDArray[np.int64]
    inputs: NDArray[Any]

    @classmethod
    def of(
        cls,
        x: NDArray[Any],
        starts: NDArray[np.int64],
        tokens: NDArray[np.int64] | None,
        *,
        pairs: bool,
    ) -> "ExpertBlocks":
        """Read rows of x, float32 or the bits of bfloat16; see `GroupedLinear`.

        pairs: keep bfloat16, two in a word; otherwise inputs become float32.
        """
        counts = np.diff(starts)
        experts = np.flatnonzero(counts)
        num_blocks = -(-counts[experts] // ROWS)
        first_blocks = np.concatenate([[0], np.cumsum(num_blocks)])
        width = -(-x.shape[1] // STEP) * STEP
        if pairs:
            inputs = aligned_empty((int(first_blocks[-1]), width // 2, ROWS), np.uint32)
        else:
            inputs = aligned_empty((int(first_blocks[-1]), width, ROWS), np.float32)
        blocks = cls(experts, starts[experts], starts[experts + 1], first_blocks, inputs)
        used = np.repeat(np.arange(len(experts)), num_blocks)
        first_rows = blocks.starts[used] + (np.arange(len(used)) - first_blocks[used]) * ROWS
        tokens = np.arange(starts[-1]) if tokens is None else tokens
        choose_threads(inputs.size)
        pack = _pack_pairs if pairs else _pack_floats
        pack(x, tokens, first_rows, blocks.ends[used], inputs)
        return blocks


@kernel
def _pack_floats(x: Any, tokens: Any, first_rows: Any, ends: Any, inputs: Any) -> None:
    width = inputs.shape[1]
    for block in numba.prange(inputs.shape[0]):
        rows = np.zeros(ROWS * width, np.float32)
        first = first_rows[block]
        for i in range(min(ROWS, ends[block] - first)):
            source, target = x[tokens[first + i]], rows[i * width : (i + 1) * width]
            for k in range(source.shape[0]):
                target[k] = to_float32(source[k])
        for k in range(0, width, ROWS):
            transpose_words(rows, k, width, inputs, (block * width + k) * ROWS, ROWS)


@kernel
def _pack_pairs(x: Any, tokens: Any, first_rows: Any, ends: Any, inputs: Any) -> None:
    width = inputs.shape[1]
    for block in numba.prange(inputs.shape[0]):
        rows = np.zeros(ROWS * 2 * width, np.uint16)
        first = first_rows[block]
        for i in range(min(ROWS, ends[block] - first)):
            source, target = x[tokens[first + i]], rows[i * 2 * width : (i + 1) * 2 * width]
            for k in range(source.shape[0]):
                target[k] = source[k]
        words = rows.view(np.uint32)
        for k in range(0, width, ROWS):
            transpose_words(words, k, width, inputs, (block * width + k) * ROWS, ROWS)


PANEL = 32


def panel_operand(weights: Any, column: Any, num_columns: Any, num_k: Any, like: Any) -> Any:
    """Inside kernels: return (array, start, stride) of rows `column` .. `column + 31` of a weight.

    The array has the dtype of `like`: the weight itself where that is the same and the panel whole,
    else a copy with zeros beyond the last column and up to a multiple of 32 of k.
    """
    raise NotImplementedError("only compiled code calls this")


@overload(panel_operand, strict=False)
def _overload_panel_operand(
    weights: Any, column: Any, num_columns: Any, num_k: Any, like: Any
) -> Any:
    if weights.dtype != like.dtype:
        return lambda weights, column, num_columns, num_k, like: _copied(
            weights, column, num_columns, num_k, like
        )

    def in_place(weights: Any, column: Any, num_columns: Any, num_k: Any, like: Any) -> Any:
        if num_k % STEP == 0 and column + PANEL <= num_columns:
            return weights, column * num_k, num_k
        return _copied(weights, column, num_columns, num_k, like)

    return in_place


@inlined()
def _copied(weights: Any, column: Any, num_columns: Any, num_k: Any, like: Any) -> Any:
    stride = (num_k + STEP - 1) // STEP * STEP
    panel = aligned_zeros(PANEL * stride, like.dtype)
    for i in range(min(PANEL, num_columns - column)):
        source = weights[(column + i) * num_k : (column + i + 1) * num_k]
        target = panel[i * stride : i * stride + num_k]
        for k in range(num_k):
            target[k] = from_float32(to_float32(source[k]), like)
    return panel, 0, stride


@inlined()
def add_bias(
    rows: Any, num_rows: Any, num_columns: Any, bias: Any, expert: Any, column: Any
) -> None:
    """Add an expert's bias from `column` on to the first rows [at least num_rows, 32] float32."""
    if bias.shape[0] == 0:
        return
    own = bias[expert, column : column + num_columns]
    for i in range(num_rows):
        row = rows[i * PANEL : i * PANEL + num_columns]
        for j in range(num_columns):
            row[j] += to_float32(own[j])


@inlined()
def write_rows(rows: Any, num_rows: Any, num_columns: Any, out: Any, row: Any, column: Any) -> None:
    """Write the first columns of rows [at least num_rows, 32] float32 to `out`, rounded."""
    for i in range(num_rows):
        source = i * PANEL
        if num_columns == PANEL:
            target = (row + i) * out.shape[1] + column
            write_lanes(out, target, load(rows, source))
            write_lanes(out, target + ROWS, load(rows, source + ROWS))
        else:
            for j in range(num_columns):
                out[row + i, column + j] = from_float32(rows[source + j], out)


_COLUMNS = 2 * block_product.ROWS  # a block's columns are the rows of A
_multiply_block = block_product.block_product(_COLUMNS, 1)


@kernel
def multiply_fma(
    num_threads: Any,
    addresses: Any,
    weight_like: Any,
    bias: Any,
    operand_like: Any,
    num_columns: Any,
    num_k: Any,
    experts: Any,
    starts: Any,
    ends: Any,
    first_blocks: Any,
    inputs: Any,
    out: Any,
) -> None:
    """Multiply blocks of inputs with the weights of their experts; see `ExpertBlocks`.

    addresses: [num_experts, num_parts] int64, of weights [num_columns, num_k] of the dtype of
    `weight_like`. They are multiplied as `operand_like`: float32 with inputs of float32, or pairs
    of bfloat16 with words. The columns of a part follow those of the one before in `out`. bias:
    [num_experts, all columns] of the dtype of weights, without experts for none. Threads
    take panels of columns, those of one expert after the other, so that its inputs stay in the
    cache.
    """
    panels_of_part = (num_columns + PANEL - 1) // PANEL
    num_panels = addresses.shape[1] * panels_of_part
    cut = cut_panels(num_threads, experts.shape[0], num_panels, 1)
    for thread in numba.prange(num_threads):
        while True:
            used, place, end = next_panels(cut, thread)
            if place == end:
                break
            part_of, column = place // panels_of_part, place % panels_of_part * PANEL
            weights = array_at(addresses[experts[used], part_of], num_columns * num_k, weight_like)
            panel, start, stride = panel_operand(weights, column, num_columns, num_k, operand_like)
            width = min(PANEL, num_columns - column)
            target = part_of * num_columns + column
            for block in range(first_blocks[used], first_blocks[used + 1]):
                rows = _block_rows(panel, start, stride, inputs, block)
                row = starts[used] + (block - first_blocks[used]) * ROWS
                num_rows = min(ROWS, ends[used] - row)
                add_bias(rows, num_rows, width, bias, experts[used], target)
                write_rows(rows, num_rows, width, out, row, target)


@inlined()
def _block_rows(panel: Any, start: Any, stride: Any, inputs: Any, block: Any) -> Any:
    """Return the products of a block with a panel, [16, 32] float32."""
    num_k = inputs.shape[1]  # terms or pairs of them
    terms = stride // num_k
    sums, rows = aligned_floats(PANEL * ROWS), aligned_floats(ROWS * PANEL)
    sums[:] = np.float32(0.0)
    for column in range(0, PANEL, _COLUMNS):
        _multiply_block(
            panel,
            start + column * stride,
            stride,
            terms,
            inputs,
            block * num_k * ROWS,
            ROWS,
            num_k,
            sums,
            column * ROWS,
            ROWS,
        )
    transpose_words(sums, 0, ROWS, rows, 0, PANEL)
    transpose_words(sums, ROWS * ROWS, ROWS, rows, ROWS, PANEL)
    return rows


FEW_BLOCKS = 2
CHUNK_STEPS = 16
_TILE = ROWS * ROWS  # words of inputs, or sums
_PAIR = 4 * _TILE  # the sums of two blocks with a panel


@kernel
def multiply_tiles(
    num_threads: Any,
    addresses: Any,
    weight_like: Any,
    bias: Any,
    shapes: Any,
    num_columns: Any,
    num_k: Any,
    experts: Any,
    starts: Any,
    ends: Any,
    first_blocks: Any,
    inputs: Any,
    out: Any,
) -> None:
    """Multiply blocks of inputs with the weights of their experts; see `multiply_fma`.

    shapes: see `amx.configure`. Weights and `out` are bits of bfloat16, inputs words of two.
    """
    panels_of_part = (num_columns + PANEL - 1) // PANEL
    num_panels = addresses.shape[1] * panels_of_part
    cut = cut_panels(num_threads, experts.shape[0], num_panels, 1)
    for thread in numba.prange(num_threads):
        while True:
            used, place, end = next_panels(cut, thread)
            if place == end:
                break
            part_of, column = place // panels_of_part, place % panels_of_part * PANEL
            weights = array_at(addresses[experts[used], part_of], num_columns * num_k, weight_like)
            panel, start, stride = panel_operand(weights, column, num_columns, num_k, weight_like)
            width = min(PANEL, num_columns - column)
            target = part_of * num_columns + column
            amx.configure(shapes)
            if first_blocks[used + 1] - first_blocks[used] <= FEW_BLOCKS:
                sums = _few_blocks(
                    panel, start, stride, inputs, first_blocks[used], first_blocks[used + 1]
                )
            else:
                sums = _many_blocks(
                    panel, start, stride, inputs, first_blocks[used], first_blocks[used + 1]
                )
            amx.release()
            rows = aligned_floats(2 * ROWS * PANEL)
            for row in range(starts[used], ends[used], 2 * ROWS):
                _transpose_sums(sums, (row - starts[used]) // (2 * ROWS) * _PAIR, rows)
                num_rows = min(2 * ROWS, ends[used] - row)
                add_bias(rows, num_rows, width, bias, experts[used], target)
                write_rows(rows, num_rows, width, out, row, target)


@inlined()
def _few_blocks(panel: Any, start: Any, stride: Any, inputs: Any, first: Any, last: Any) -> Any:
    """Return the sums of one or two blocks with a panel, bound by reading weights."""
    other = (last - 1 - first) * inputs.shape[1] * ROWS
    w, x = start, first * inputs.shape[1] * ROWS
    sums = aligned_floats(_PAIR)
    amx.zero_sums()
    if other == 0:
        for _ in range(stride // STEP):
            amx.load_b0(inputs, x, 64)
            amx.load_a0(panel, w, 2 * stride)
            amx.load_a1(panel, w + ROWS * stride, 2 * stride)
            amx.dot_00()
            amx.dot_10()
            w += STEP
            x += _TILE
    else:
        for _ in range(stride // STEP):
            amx.load_b0(inputs, x, 64)
            amx.load_a0(panel, w, 2 * stride)
            amx.load_b1(inputs, x + other, 64)
            amx.load_a1(panel, w + ROWS * stride, 2 * stride)
            amx.dot_tiles()
            w += STEP
            x += _TILE
    amx.store_tiles(sums, 0)
    return sums


@inlined()
def _many_blocks(panel: Any, start: Any, stride: Any, inputs: Any, first: Any, last: Any) -> Any:
    """Return the sums of blocks with a panel.

    A chunk of the panel is copied, so that it stays in L1 for all blocks: rows of a weight are
    often a multiple of 4 KiB apart and map to the same cache set. An interrupted chain continues
    from its sum. An odd last block is computed twice.
    """
    num_steps, num_pairs = stride // STEP, (last - first + 1) // 2
    size = inputs.shape[1] * ROWS
    sums = aligned_floats(num_pairs * _PAIR)
    chunk = aligned_zeros(CHUNK_STEPS * PANEL * STEP, panel.dtype)
    for begin in range(0, num_steps, CHUNK_STEPS):
        steps = min(CHUNK_STEPS, num_steps - begin)
        _copy_chunk(panel, start + begin * STEP, stride, steps, chunk)
        for pair in range(num_pairs):
            x = (first + 2 * pair) * size + begin * _TILE
            y = min(first + 2 * pair + 1, last - 1) * size + begin * _TILE
            if begin == 0:
                amx.zero_sums()
            else:
                amx.load_tiles(sums, pair * _PAIR)
            w = 0
            for _ in range(steps):
                amx.load_b0(inputs, x, 64)
                amx.load_a0(chunk, w, 64)
                amx.load_b1(inputs, y, 64)
                amx.load_a1(chunk, w + ROWS * STEP, 64)
                amx.dot_tiles()
                w += PANEL * STEP
                x += _TILE
                y += _TILE
            amx.store_tiles(sums, pair * _PAIR)
    return sums


@inlined()
def _copy_chunk(panel: Any, start: Any, stride: Any, steps: Any, chunk: Any) -> None:
    """Copy some steps of a panel, [steps, 32, 32]; tiles are faster than vectors."""
    for step in range(steps):
        place = step * PANEL * STEP
        amx.load_00(panel, start + step * STEP, 2 * stride)
        amx.load_10(panel, start + step * STEP + ROWS * stride, 2 * stride)
        amx.store_00(chunk, place, 64)
        amx.store_10(chunk, place + ROWS * STEP, 64)


@inlined()
def _transpose_sums(sums: Any, place: Any, rows: Any) -> None:
    """Transpose the sums of two blocks to rows [32, 32]."""
    transpose_words(sums, place, ROWS, rows, 0, PANEL)
    transpose_words(sums, place + _TILE, ROWS, rows, ROWS, PANEL)
    transpose_words(sums, place + 2 * _TILE, ROWS, rows, ROWS * PANEL, PANEL)
    transpose_words(sums, place + 3 * _TILE, ROWS, rows, ROWS * PANEL + ROWS, PANEL)


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


@inlined()
def array_at(address: Any, size: Any, like: Any) -> Any:
    """Inside kernels: return the `size` elements at an address (int64), of the dtype of `like`.

    For large numbers of operands. The caller keeps them alive.
    """
    return numba.carray(_pointer(address), (size,), like.dtype)
