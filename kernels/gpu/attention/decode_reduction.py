"""The Triton kernel that merges the states of a row's partitions, and writes its result."""

from typing import Any

import triton
import triton.language as tl

from pagedrun.kernels.gpu.attention.softmax_state import add_sinks, empty_state, merge_states


@triton.jit(do_not_specialize=["max_partitions"])
def reduce_states(
    peaks,
    masses,
    totals,
    context_lens,
    out,
    sinks,
    prefix_peaks,
    prefix_masses,
    prefix_totals,
    first_slots,
    num_prefix_states,
    num_prefix_partitions,
    window,
    max_partitions,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTITION: tl.constexpr,
    PREFIX_PARTITION: tl.constexpr,
    STATES_AHEAD: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """One program: one query head of one row, over the states of its prefix and its partitions.

    Grid: (num_heads, num_rows).
    """
    head, row, num_heads = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    columns = tl.arange(0, WIDTH)
    inside = (columns < HEAD_DIM)[None, :]
    out_elements = out + (row * num_heads + head) * HEAD_DIM + columns[None, :]
    length = tl.load(context_lens + row)
    if length == 0:
        tl.store(out_elements, tl.zeros((1, WIDTH), out.dtype.element_ty), mask=inside)
        return
    peak, mass, total = empty_state(1, WIDTH)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(length - window, 0)
    if HAS_PREFIX:
        first = tl.load(num_prefix_partitions + row) * PREFIX_PARTITION
        slot = tl.load(first_slots + row).to(tl.int64)
        peak, mass, total = merge_run(
            peak, mass, total, prefix_peaks, prefix_masses, prefix_totals,
            slot * num_heads + head, tl.load(num_prefix_states + row), num_heads,
            HEAD_DIM, WIDTH, STATES_AHEAD,
        )  # fmt: skip
    if length > first:
        count = tl.cdiv(length, PARTITION) - first // PARTITION
        peak, mass, total = merge_run(
            peak, mass, total, peaks, masses, totals,
            row * max_partitions * num_heads + head, count, num_heads,
            HEAD_DIM, WIDTH, STATES_AHEAD,
        )  # fmt: skip
    if sinks is not None:
        mass = add_sinks(peak, mass, tl.load(sinks + head + tl.arange(0, 1)))
    tl.store(out_elements, (total / mass[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def merge_run(
    peak,
    mass,
    total,
    peaks,
    masses,
    totals,
    first,
    count,
    stride,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    STATES_AHEAD: tl.constexpr,
) -> Any:
    """Merge the states at first, first + stride, .. into that of one query head."""
    columns = tl.arange(0, WIDTH)
    inside = (columns < HEAD_DIM)[None, :]
    state = first + tl.arange(0, 1)
    # Loads of several states ahead: one after another they would cost their latency each.
    for _ in tl.range(count, num_stages=STATES_AHEAD):
        next_total = tl.load(
            totals + state[:, None] * HEAD_DIM + columns[None, :], mask=inside, other=0.0
        )
        peak, mass, total = merge_states(
            peak, mass, total, tl.load(peaks + state), tl.load(masses + state), next_total
        )
        state += stride
    return peak, mass, total
