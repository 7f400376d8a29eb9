"""How codes lie for products of pairs: sixteen outputs side by side, two of their inputs each.

A register of weights has, for each of sixteen outputs, two neighbouring inputs as a word: what
`vdpbf16ps` takes. It is made of two registers of float32, one for each eight outputs (a *side*),
whose lane `2 * i + j` is input j of output i. So sixteen lanes of a side's codes lie together, and
the sides of a panel behind one another.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.cpu.jit import EXACT, kernel, part
from pagedrun.kernels.cpu.simd.code_pairs import (
    LANES,
    PAIRS_OF_STEP,
    SIDES,
)

PANEL = 32  # outputs whose codes lie together
STEP = 32  # inputs of a panel whose codes lie together
_QUADS = 4  # of a step, eight inputs each

_EVEN_BYTES, _ONES = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0001000100010001)


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
    bits above four. What lies beyond the last row and column means any finite number.
    """
    num_columns = below.shape[1] * STEP
    if codes.shape[1] != num_columns:
        codes = np.pad(codes, ((0, 0), (0, num_columns - codes.shape[1])))
    if num_bits == 0:
        _pack_floats(codes.view(np.uint16), below.view(np.uint16))
        return
    quads, added = codes.view(np.uint64), np.uint64(offset) * _ONES
    if num_bits == 8:
        _pack_bytes(quads, added, below.view(np.uint32))
    else:
        words = above.view(np.uint16 if num_bits == 5 else np.uint32)
        _pack_words(quads, added, num_bits - 4, below.view(np.uint32), words)


@kernel
def _pack_floats(pairs: Any, packed: Any) -> None:
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint16(0)
        for i in range(min(PANEL, pairs.shape[0] - panel * PANEL)):
            source = pairs[panel * PANEL + i]
            for step in range(packed.shape[1]):
                for pair in range(PAIRS_OF_STEP):
                    place = pair * PANEL + i
                    packed[panel, step, place] = source[step * PAIRS_OF_STEP + pair]


@kernel
def _pack_bytes(quads: Any, added: Any, packed: Any) -> None:
    """A word has the codes of four pairs.

    quads: [out_features, in_features / 8] uint64, four pairs of inputs each.
    """
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint32(0)
        for i in range(min(PANEL, quads.shape[0] - panel * PANEL)):
            source = quads[panel * PANEL + i]
            for step in range(packed.shape[1]):
                of_step = packed[panel, step]
                for quad in range(_QUADS):
                    eight = source[step * _QUADS + quad]
                    for j in range(2):
                        codes = _every_other(eight, j, added)
                        codes = (codes | (codes >> np.uint64(8))) & np.uint64(0x0000FFFF0000FFFF)
                        word = np.uint32(codes | (codes >> np.uint64(16)))
                        of_step[quad * SIDES * LANES + 2 * i + j] = word


@kernel
def _pack_words(quads: Any, added: Any, bits_above: Any, packed: Any, above: Any) -> None:
    """A word has the lower four bits of eight pairs, one of `above` the others of all sixteen."""
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint32(0)
        above[panel] = 0
        for i in range(min(PANEL, quads.shape[0] - panel * PANEL)):
            source = quads[panel * PANEL + i]
            for step in range(packed.shape[1]):
                of_step, upper = packed[panel, step], above[panel, step]
                for j in range(2):
                    high = np.uint64(0)
                    for block in range(2):
                        first = _every_other(source[step * _QUADS + 2 * block], j, added)
                        second = _every_other(source[step * _QUADS + 2 * block + 1], j, added)
                        low, last = _squeezed(first, 4), _squeezed(second, 4)
                        place = block * SIDES * LANES + 2 * i + j
                        if bits_above == 0:
                            # As in `NIBBLE_PLACES`, from bit 31 on around the end.
                            turned = last >> np.uint64(8)
                            turned |= (last & np.uint64(255)) << np.uint64(8)
                            turned |= low << np.uint64(16)
                            word = (turned >> np.uint64(1)) | (turned << np.uint64(31))
                            of_step[place] = np.uint32(word & np.uint64(0xFFFFFFFF))
                        else:
                            of_step[place] = np.uint32(low | (last << np.uint64(16)))
                            fours = np.uint64(4 * bits_above)
                            both = _squeezed(first >> np.uint64(4), bits_above)
                            both |= _squeezed(second >> np.uint64(4), bits_above) << fours
                            high |= both << np.uint64(8 * bits_above * block)
                    if bits_above > 0:
                        upper[2 * i + j] = high


@part(fastmath=EXACT)
def _every_other(eight: Any, j: Any, added: Any) -> Any:
    """Return four codes of eight, sixteen bits each."""
    codes = (eight >> np.uint64(8 * j)) & _EVEN_BYTES
    return (codes + added) & _EVEN_BYTES


@part(fastmath=EXACT)
def _squeezed(codes: Any, bits: Any) -> Any:
    """Return the lower bits of four codes beside one another."""
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    codes = codes & (mask * _ONES)
    codes = codes | (codes >> np.uint64(16 - bits))
    pair = (np.uint64(1) << np.uint64(2 * bits)) - np.uint64(1)
    return (codes & pair) | (((codes >> np.uint64(32)) & pair) << np.uint64(2 * bits))
