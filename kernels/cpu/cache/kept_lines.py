"""Lines of a KV memory as they are written: one head of one token, as it is or as codes.

A cache of numbers is written in place. For one of codes the line is made in float32 first, since
its scale is known only when it is whole.
"""

from typing import Any

import numpy as np
from numba.extending import overload

from pagedrun.kernels.cpu.bfloat16 import are_codes
from pagedrun.kernels.cpu.cache.quantize import quantize


def line_for(cache: Any, place: Any) -> Any:
    """Inside kernels: memory [head_dim] for the line at `place` = (block, head, offset)."""
    raise NotImplementedError("only compiled code calls this")


def keep_line(line: Any, cache: Any, scales: Any, place: Any) -> None:
    """Inside kernels: make the line part of the cache, with its scale where that has codes."""
    raise NotImplementedError("only compiled code calls this")


@overload(line_for, strict=False)
def _overload_line_for(cache: Any, place: Any) -> Any:
    if are_codes(cache):
        return lambda cache, place: np.empty(cache.shape[3], np.float32)
    return lambda cache, place: cache[place]


@overload(keep_line, strict=False)
def _overload_keep_line(line: Any, cache: Any, scales: Any, place: Any) -> Any:
    if not are_codes(cache):
        return lambda line, cache, scales, place: None

    def keep(line: Any, cache: Any, scales: Any, place: Any) -> None:
        scales[place] = quantize(line, cache[place])

    return keep
