"""Products of bfloat16 with weights of few bits by `vdpbf16ps`, sums in float32.

Each output is one chain over pairs of inputs in ascending order, begun anew after each `block` of
inputs; the chains' ends are added up one after the other. That is how oneDNN adds on processors
with AVX512-BF16 and without tiles, so outputs have the bits that it gives to the weights in
bfloat16 (found on a Zen 4 with torch 2.13).

Up to `FEW_ROWS` rows are multiplied while weights are in registers; with more, eight steps of
weights stay in the cache while the rows pass.
"""

from typing import Any

import numba
import numpy as np

from pagedrun.kernels.cpu.jit import kernel, part
from pagedrun.kernels.cpu.linears.block_epilogue import write_block
from pagedrun.kernels.cpu.packed.code_arrays import PANEL, STEP
from pagedrun.kernels.cpu.packed.pair_weights import (
    FEW_ROWS,
    GROUP_BYTES,
    begin_group,
    begin_memory,
    constants,
    multiply_few,
    multiply_step,
    unpack_step,
)
from pagedrun.kernels.cpu.simd.aligned import aligned_floats
from pagedrun.kernels.cpu.simd.block_product import block_product
from pagedrun.kernels.cpu.simd.prefetch import prefetch_at

ROWS = 8  # of a block
CHUNK_STEPS = 8
ROWS_AT_ONCE = 512  # their sums stay in L2
PANELS_OF_TASK = 4
_BYTES_AHEAD = 4096  # of a weight's memory, that are asked for before they are needed
_STEP_WORDS = PANEL * STEP // 2
_SHORT, _LONG = 512, 1024

_multiply_block = block_product(ROWS, 2)


def steps_of_block(in_features: int) -> int:
    """Return after how many steps a chain begins anew."""
    return (_LONG if in_features > _LONG else _SHORT) // STEP


@kernel
def multiply_pairs(
    x: Any, weight: Any, first_code: Any, bias: Any, steps_of_block: Any, out: Any
) -> None:
    """Multiply rows with a weight.

    x: bits of bfloat16, [num_rows, 32 * num_steps], with rows of zeros up to a multiple of what is
    multiplied at once. weight: `PairArrays.places`. bias: float32, one for each output of all
    panels, or empty. out: [num_rows, out_features], bits of bfloat16.
    """
    num_panels = (out.shape[1] + PANEL - 1) // PANEL
    rows_at_once = min(ROWS_AT_ONCE, x.shape[0])
    for task in numba.prange((num_panels + PANELS_OF_TASK - 1) // PANELS_OF_TASK):
        memory = aligned_floats(GROUP_BYTES // 4)
        begin_memory(memory, first_code)
        chunk = aligned_floats(CHUNK_STEPS * _STEP_WORDS).view(np.uint32)
        sums, totals = aligned_floats(rows_at_once * PANEL), aligned_floats(rows_at_once * PANEL)
        start = task * PANELS_OF_TASK
        for panel in range(start, min(num_panels, start + PANELS_OF_TASK)):
            if x.shape[0] <= FEW_ROWS:
                _few_rows(x, weight, first_code, panel, steps_of_block, memory, sums, totals)
                write_block(totals, 0, x.shape[0], bias, 0, panel * PANEL, out)
                continue
            for row in range(0, x.shape[0], rows_at_once):
                end = min(x.shape[0], row + rows_at_once)
                _many_rows(
                    x,
                    row,
                    end,
                    weight,
                    first_code,
                    panel,
                    steps_of_block,
                    memory,
                    chunk,
                    sums,
                    totals,
                )
                write_block(totals, 0, end - row, bias, row, panel * PANEL, out)
        # Numba frees an array behind its last use, and knows of none by address.
        memory[0] = np.float32(0.0)
        sums[0] = np.float32(0.0)
        chunk[0] = np.uint32(0)


@part()
def _few_rows(
    x: Any,
    weight: Any,
    first_code: Any,
    panel: Any,
    steps_of_block: Any,
    memory: Any,
    sums: Any,
    totals: Any,
) -> None:
    num_steps, step_bytes, above_bytes = weight.num_steps, weight.step_bytes, weight.above_bytes
    numbers = memory.ctypes.data
    first, second = constants(weight, numbers)
    inputs, stride = x.ctypes.data, 2 * x.shape[1]
    codes = weight.codes + panel * num_steps * step_bytes
    above = weight.above + panel * num_steps * above_bytes
    target = sums.ctypes.data
    used = x.shape[0] * PANEL
    totals[:used] = np.float32(0.0)
    left = 0
    for begin in range(0, num_steps, steps_of_block):
        sums[:used] = np.float32(0.0)
        for step in range(begin, min(num_steps, begin + steps_of_block)):
            if left > 0:
                left -= 1
            else:
                left = begin_group(weight, panel, step, first_code, numbers)
            prefetch_at(codes + _BYTES_AHEAD, step_bytes // 64)
            if x.shape[0] == 1:
                multiply_step(weight, codes, above, first, second, inputs, stride, target)
            else:
                multiply_few(weight, codes, above, first, second, inputs, stride, target)
            codes += step_bytes
            above += above_bytes
            inputs += 2 * STEP
        _add(sums, totals, used)


@part()
def _many_rows(
    x: Any,
    row: Any,
    end: Any,
    weight: Any,
    first_code: Any,
    panel: Any,
    steps_of_block: Any,
    memory: Any,
    chunk: Any,
    sums: Any,
    totals: Any,
) -> None:
    num_steps, step_bytes, above_bytes = weight.num_steps, weight.step_bytes, weight.above_bytes
    numbers = memory.ctypes.data
    first, second = constants(weight, numbers)
    codes = weight.codes + panel * num_steps * step_bytes
    above = weight.above + panel * num_steps * above_bytes
    target = chunk.ctypes.data
    used = (end - row) * PANEL
    totals[:used] = np.float32(0.0)
    sums[:used] = np.float32(0.0)
    left = 0
    for begin in range(0, num_steps, CHUNK_STEPS):
        steps = min(CHUNK_STEPS, num_steps - begin)
        for step in range(steps):
            if left > 0:
                left -= 1
            else:
                left = begin_group(weight, panel, begin + step, first_code, numbers)
            prefetch_at(codes + _BYTES_AHEAD, step_bytes // 64)
            unpack_step(weight, codes, above, first, second, target + step * 4 * _STEP_WORDS)
            codes += step_bytes
            above += above_bytes
        for i in range(row, end, ROWS):
            place = i * x.shape[1] + begin * STEP
            _multiply_block(
                x,
                place,
                x.shape[1],
                2,
                chunk,
                0,
                PANEL,
                steps * STEP // 2,
                sums,
                (i - row) * PANEL,
                PANEL,
            )
        if (begin + CHUNK_STEPS) % steps_of_block == 0 or begin + CHUNK_STEPS >= num_steps:
            _add(sums, totals, used)
            sums[:used] = np.float32(0.0)


@part()
def _add(sums: Any, totals: Any, used: Any) -> None:
    one, all_of_them = sums[:used], totals[:used]
    for i in range(used):
        all_of_them[i] += one[i]
