"""Weights of a panel, step by step: what kernels do before they multiply."""

from typing import Any

from pagedrun.kernels.cpu.jit import EXACT, part
from pagedrun.kernels.cpu.packed.code_arrays import (
    BFLOAT16,
    EIGHT_BITS,
    FIVE_BITS,
    FLOAT16,
    FLOAT32,
    FOUR_BITS,
    PANEL,
    SIX_BITS,
)
from pagedrun.kernels.cpu.simd.codes import (
    bfloat16_at,
    float_at,
    half_at,
    int8_at,
    store_at,
    tables_16,
    tables_16_minimum,
    tables_16_zero,
    tables_32,
    tables_32_minimum,
    tables_32_zero,
    unpack_eight_bits,
    unpack_five_bits,
    unpack_float8,
    unpack_four_bits,
    unpack_six_bits,
)

_LANES = 16
# Bytes behind the beginning of what kernels have for a group's numbers, and how many there are.
_ZEROS, _MINIMA, _SECOND, NUMBER_BYTES = 128, 256, 384, 512
TABLE_BYTES = 64  # of an output, at most


@part(fastmath=EXACT)
def begin_group(weight: Any, panel: Any, step: Any, numbers: Any, tables: Any) -> Any:
    """Read the numbers of the group that begins at a step; return how many steps follow in it.

    weight: `CodePlaces`. numbers: the address of `NUMBER_BYTES`. tables: of `TABLE_BYTES`
    for each output, for what each of its codes means.
    """
    if weight.steps_per_group == 0:
        read_numbers(weight, weight.scales, weight.factors, panel, 2 * step, numbers)
        read_numbers(weight, weight.scales, weight.factors, panel, 2 * step + 1, numbers + _SECOND)
        return 0
    group = step // weight.steps_per_group
    read_numbers(weight, weight.scales, weight.factors, panel, group, numbers)
    if weight.kind == FOUR_BITS or weight.kind == FIVE_BITS:
        _write_tables(weight, panel, group, numbers, tables)
    return weight.steps_per_group - 1


@part(fastmath=EXACT)
def _write_tables(weight: Any, panel: Any, group: Any, numbers: Any, tables: Any) -> None:
    if weight.zeros != 0:
        first = weight.zeros + (panel * weight.num_groups + group) * PANEL
        for i in range(0, PANEL, _LANES):
            store_at(numbers + _ZEROS + 4 * i, int8_at(first + i))
    if weight.minima != 0:
        place = numbers + _MINIMA
        read_numbers(weight, weight.minima, weight.minimum_factors, panel, group, place)
    zeros, minima = numbers + _ZEROS, numbers + _MINIMA
    if weight.kind == FOUR_BITS:
        if weight.minima != 0:
            tables_16_minimum(numbers, zeros, minima, tables)
        elif weight.zeros != 0:
            tables_16_zero(numbers, zeros, minima, tables)
        else:
            tables_16(numbers, zeros, minima, tables)
    elif weight.minima != 0:
        tables_32_minimum(numbers, zeros, minima, tables)
    elif weight.zeros != 0:
        tables_32_zero(numbers, zeros, minima, tables)
    else:
        tables_32(numbers, zeros, minima, tables)


@part(fastmath=EXACT)
def read_numbers(
    weight: Any, values: Any, factors: Any, panel: Any, group: Any, target: Any
) -> None:
    """Write 32 numbers of a panel's group as float32."""
    first = (panel * weight.num_groups + group) * PANEL
    if weight.scale_form == FLOAT32:
        for i in range(0, PANEL, _LANES):
            store_at(target + 4 * i, float_at(values + 4 * (first + i)))
    elif weight.scale_form == FLOAT16:
        for i in range(0, PANEL, _LANES):
            store_at(target + 4 * i, half_at(values + 2 * (first + i)))
    elif weight.scale_form == BFLOAT16:
        for i in range(0, PANEL, _LANES):
            store_at(target + 4 * i, bfloat16_at(values + 2 * (first + i)))
    else:
        num_factors = weight.num_groups // weight.groups_per_factor
        factor = (panel * num_factors + group // weight.groups_per_factor) * PANEL
        for i in range(0, PANEL, _LANES):
            value = int8_at(values + first + i) * half_at(factors + 2 * (factor + i))
            store_at(target + 4 * i, value)


@part()
def second_numbers(weight: Any, numbers: Any) -> Any:
    """Return the address of the scales of a step's second half."""
    return numbers + _SECOND if weight.steps_per_group == 0 else numbers


@part(fastmath=EXACT)
def unpack_step(
    kind: Any, codes: Any, above: Any, numbers: Any, second: Any, tables: Any, target: Any
) -> None:
    """Write the weights of a panel's step to an address, [32 outputs, 32] bfloat16.

    codes, above: where the step's are. It is given addresses rather than `CodePlaces`, since all
    fields of that would be copied for each step.
    """
    if kind == FOUR_BITS:
        unpack_four_bits(codes, above, tables, target)
    elif kind == FIVE_BITS:
        unpack_five_bits(codes, above, tables, target)
    elif kind == SIX_BITS:
        unpack_six_bits(codes, above, numbers, second, target)
    elif kind == EIGHT_BITS:
        unpack_eight_bits(codes, above, numbers, second, target)
    else:
        unpack_float8(codes, above, numbers, second, target)
