"""How codes lie for products of pairs: sixteen outputs side by side, two of their inputs each.

A register of numbers has, for each of sixteen outputs, two neighbouring inputs as halves of a word:
what `vdpbf16ps` takes. It is looked up by 32 indices of 16 bits, of which index `2 * i + j` is for
input j of output i; so each of these has codes of several pairs of inputs. A panel has two such
halves of its outputs, which lie behind one another.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.cpu.jit import EXACT, kernel, part
from pagedrun.kernels.cpu.simd.code_pairs import HALVES, PAIRS_OF_STEP, TABLE_BYTES
from pagedrun.kernels.cpu.simd.lanes import NUM_LANES as OUTPUTS

PANEL = 32  # outputs whose codes lie together
STEP = 32  # inputs of a panel whose codes lie together
_QUADS = 4  # of a step: four pairs of inputs
_LANES = 2 * OUTPUTS

_EVEN_BYTES, _ONES = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0001000100010001)
_EACH_BYTE, _TOP_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)


def pack_pairs(
    codes: NDArray[np.uint8],
    num_bits: int,
    offset: int,
    below: NDArray[np.uint8],
    above: NDArray[np.uint8],
) -> None:
    """Copy codes [out_features, in_features] to panels and steps of these.

    num_bits: 4, 5 or 6; 8: `offset` decides, bytes as they are (0) or int8 as sign and magnitude;
    else `offset` is added to codes, which are from 0 on then. below: [num_panels, num_steps,
    bytes], the lower four bits or whole bytes; above: the bits above four. What lies beyond the
    last row and column means any finite number.
    """
    num_columns = below.shape[1] * STEP
    if codes.shape[1] != num_columns:
        codes = np.pad(codes, ((0, 0), (0, num_columns - codes.shape[1])))
    quads = codes.view(np.uint64)
    if num_bits == 8:
        _pack_bytes(quads, offset != 0, below.view(np.uint16))
    else:
        added = np.uint64(offset) * _ONES
        _pack_words(quads, added, num_bits - 4, below.view(np.uint16), above.view(np.uint16))


def tables_of(num_bits: int, offset: int, *, is_float: bool) -> NDArray[np.uint8]:
    """Return what codes are looked up in, `TABLE_BYTES`: bfloat16 for each code, from 0 on; with
    eight bits the lower bytes of 128 magnitudes, then their upper bytes."""
    if num_bits < 8:
        values = np.arange(1 << num_bits, dtype=np.float32) - np.float32(offset)
        words = np.resize(_upper_halves(values), TABLE_BYTES // 2)
        return words.view(np.uint8).copy()
    magnitudes = np.arange(128)
    values = _of_float8(magnitudes) if is_float else magnitudes.astype(np.float32)
    words = _upper_halves(values)
    return np.concatenate([words & 0xFF, words >> 8]).astype(np.uint8)


def _upper_halves(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of bfloat16, of numbers that are exact in it."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _of_float8(codes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return what the magnitudes of float8_e4m3fn mean; of NaN, which no weight has, any number."""
    exponents, digits = codes >> 3, codes & 7
    normal = (8 + digits) * 2.0 ** (exponents - 10)
    return np.where(exponents > 0, normal, digits * 2.0**-9).astype(np.float32)


@kernel
def _pack_bytes(quads: Any, is_signed: Any, packed: Any) -> None:
    """A word of 16 bits has one pair of codes; those of halves alternate by eight bytes.

    quads: [out_features, in_features / 8] uint64.
    """
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint16(0)
        rows = quads[panel * PANEL : min(quads.shape[0], (panel + 1) * PANEL)]
        for step in range(packed.shape[1]):  # one step's memory stays in the cache
            of_step = packed[panel, step]
            for i in range(rows.shape[0]):
                output = i % OUTPUTS
                place = output // 4 * 8 + i // OUTPUTS * 4 + output % 4
                for quad in range(_QUADS):
                    eight = rows[i, step * _QUADS + quad]
                    if is_signed:
                        eight = _signs_and_magnitudes(eight)
                    for pair in range(4):
                        two = (eight >> np.uint64(16 * pair)) & np.uint64(0xFFFF)
                        of_step[(4 * quad + pair) * 2 * OUTPUTS + place] = np.uint16(two)


@kernel
def _pack_words(quads: Any, added: Any, bits_above: Any, packed: Any, above: Any) -> None:
    """A word has the lower four bits of four pairs, one of `above` the others of sixteen pairs, or
    of eight."""
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint16(0)
        above[panel] = np.uint16(0)
        for i in range(min(PANEL, quads.shape[0] - panel * PANEL)):
            source = quads[panel * PANEL + i]
            place = i // OUTPUTS * _LANES + i % OUTPUTS * 2
            for step in range(packed.shape[1]):
                of_step, upper = packed[panel, step], above[panel, step]
                for quad in range(_QUADS):
                    eight = source[step * _QUADS + quad]
                    for j in range(2):
                        codes = _every_other(eight, j, added)
                        here = quad * HALVES * _LANES + place + j
                        of_step[here] = np.uint16(_squeezed(codes, 4))
                        if bits_above > 0:
                            more = _squeezed(codes >> np.uint64(4), bits_above)
                            bit = 4 * quad * bits_above
                            here = bit // PAIRS_OF_STEP * HALVES * _LANES + place + j
                            more <<= np.uint64(bit % PAIRS_OF_STEP)
                            upper[here] |= np.uint16(more)


@part(fastmath=EXACT)
def _signs_and_magnitudes(eight: Any) -> Any:
    """Return int8, none of which is -128, as a sign above seven bits."""
    signs = eight & _TOP_BITS
    ones = (signs >> np.uint64(7)) & _EACH_BYTE
    return ((eight ^ (ones * np.uint64(0xFF))) + ones) | signs


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
