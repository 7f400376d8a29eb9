"""How codes lie for products of pairs: sixteen outputs side by side, two of their inputs each.

A register of weights has, for each of sixteen outputs, two neighbouring inputs as a word: what
`vdpbf16ps` takes. It is made of two registers of float32, one for each eight outputs (a *side*),
whose lane `2 * i + j` is input j of output i. So sixteen lanes of a side's codes lie together.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.cpu.jit import kernel
from pagedrun.kernels.cpu.simd.code_pairs import (
    LANES,
    NIBBLE_PLACES,
    SIDES,
)

PANEL = 32  # outputs whose codes lie together
STEP = 32  # inputs of a panel whose codes lie together

_FOUR_BIT_PLACES = np.array(NIBBLE_PLACES, np.uint32)
_IN_ORDER = np.arange(0, 32, 4, dtype=np.uint32)


def pack_pairs(
    codes: NDArray[np.uint8],
    num_bits: int,
    offset: int,
    below: NDArray[np.uint8],
    above: NDArray[np.uint8],
) -> None:
    """Copy codes [out_features, in_features] to panels and steps of these.

    num_bits: 4, 5, 6 or 8; 0: bytes that are no integers. offset: is added to codes, which are from
    0 on then. below: [num_panels, num_steps, bytes], the lower four bits or whole bytes; above: the
    bits above four. Zeros stand for what lies beyond the last row and column.
    """
    if num_bits == 0:
        _pack_floats(codes, below)
    elif num_bits == 8:
        _pack_bytes(codes, offset, below.view(np.uint32))
    elif num_bits == 4:
        _pack_words(
            codes, offset, _FOUR_BIT_PLACES, 0, below.view(np.uint32), above.view(np.uint16)
        )
    else:
        words = above.view(np.uint16 if num_bits == 5 else np.uint32)
        _pack_words(codes, offset, _IN_ORDER, num_bits - 4, below.view(np.uint32), words)


@kernel
def _pack_floats(codes: Any, packed: Any) -> None:
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint8(0)
        for i in range(min(PANEL, codes.shape[0] - panel * PANEL)):
            source = codes[panel * PANEL + i]
            lanes = i // 8 * LANES + i % 8 * 2
            for k in range(source.shape[0]):
                place = k % STEP // 2 * SIDES * LANES + lanes + k % 2
                packed[panel, k // STEP, place] = source[k]


@kernel
def _pack_bytes(codes: Any, offset: Any, packed: Any) -> None:
    """A word has the codes of four pairs."""
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint32(0)
        for i in range(min(PANEL, codes.shape[0] - panel * PANEL)):
            source = codes[panel * PANEL + i]
            lanes = i // 8 * LANES + i % 8 * 2
            for k in range(source.shape[0]):
                pair = k % STEP // 2
                code = np.uint32((np.int64(source[k]) + offset) & 255)
                place = pair // 4 * SIDES * LANES + lanes + k % 2
                packed[panel, k // STEP, place] |= np.uint32(code << np.uint32(pair % 4 * 8))


@kernel
def _pack_words(
    codes: Any, offset: Any, places: Any, bits_above: Any, packed: Any, above: Any
) -> None:
    """A word has the lower four bits of eight pairs, one of `above` the others of all sixteen."""
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint32(0)
        above[panel] = 0
        for i in range(min(PANEL, codes.shape[0] - panel * PANEL)):
            source = codes[panel * PANEL + i]
            lanes = i // 8 * LANES + i % 8 * 2
            for k in range(source.shape[0]):
                pair = k % STEP // 2
                code = np.uint32((np.int64(source[k]) + offset) & 255)
                moved = np.uint64(code & 15) << np.uint64(places[pair % 8])
                word = np.uint32(moved) | np.uint32(moved >> np.uint64(32))
                packed[panel, k // STEP, pair // 8 * SIDES * LANES + lanes + k % 2] |= word
                if bits_above > 0:
                    high = np.uint32(code >> np.uint32(4)) << np.uint32(pair * bits_above)
                    above[panel, k // STEP, lanes + k % 2] |= high
