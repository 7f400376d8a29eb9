"""AMX tiles: eight registers of 16 rows x 64 bytes, and products of two of them.

Intel SDM vol. 2, "TDPBF16PS": with A [16, 32] bfloat16 and B [16, 16] words of two bfloat16,
`C[m, n] += sum over k of A[m, 2k] * B[k, n].low + A[m, 2k + 1] * B[k, n].high`, in float32, in a
fixed order: an element's bits depend on its row of A and its column of B alone. "TDPBSSD" does the
same with A [16, 64] int8 and words of four int8, in int32.

Intrinsics take tile registers as constants, hence one function for each register. Tiles 0 to 3 hold
sums, [first or second 16 rows, first or second 16 columns]; 4 and 5 rows of A; 6 and 7 columns of
B. Linux grants tiles to a process on request: see `kernel_set`.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from pagedrun.kernels.cpu.jit import inlined
from pagedrun.kernels.cpu.simd.arrays import INT8, element_pointer

TILE_ROWS = 16
TILE_BYTES = 64  # of a row
_TILES_OF_A, _TILES_OF_B = (4, 5), (6, 7)


def tile_shapes(columns: int = TILE_ROWS, row_bytes: int = TILE_BYTES) -> NDArray[np.uint8]:
    """Return the memory for `configure`: eight tiles, with `columns` for sums and B.

    row_bytes: of A, as many as B has in words of a column.
    """
    shapes = np.zeros(64, np.uint8)
    shapes[0] = 1  # palette
    for tile in range(8):
        shapes[16 + 2 * tile] = row_bytes if tile in _TILES_OF_A else 4 * columns
        shapes[48 + tile] = row_bytes // 4 if tile in _TILES_OF_B else TILE_ROWS
    return shapes


def _call(builder: Any, name: str, *arguments: Any) -> None:
    function_type = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.x86.{name}")
    builder.call(function, arguments)


@intrinsic
def configure(typing_context: Any, shapes: Any) -> Any:
    """Configure the tile shapes of this thread; see `release`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = context.get_constant(types.intp, 0)
        pointer = element_pointer(
            context, builder, signature.args[0], arguments[0], types.intp, zero
        )
        _call(builder, "ldtilecfg", pointer)
        return context.get_dummy_value()

    return types.void(shapes), generate


@intrinsic
def release(typing_context: Any) -> Any:
    """Release the tiles of this thread, which are saved at each context switch otherwise."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def _move(tile: int, instruction: str) -> Any:
    @intrinsic
    def move(typing_context: Any, array: Any, offset: Any, stride: Any) -> Any:
        """Load or store a tile of a C array from element `offset` on, `stride` bytes a row.

        array: or the address of words.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            types_of = signature.args
            pointer = element_pointer(
                context, builder, types_of[0], arguments[0], types_of[1], arguments[1]
            )
            num_bytes = context.cast(builder, arguments[2], types_of[2], types.intp)
            _call(builder, instruction, INT8(tile), pointer, num_bytes)
            return context.get_dummy_value()

        return types.void(array, offset, stride), generate

    return move


def _zero(tile: int) -> Any:
    @intrinsic
    def zero(typing_context: Any) -> Any:
        """Fill a tile with zeros."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _call(builder, "tilezero", INT8(tile))
            return context.get_dummy_value()

        return types.void(), generate

    return zero


def _dot(total: int, rows: int, columns: int, *, of_bytes: bool = False) -> Any:
    @intrinsic
    def dot(typing_context: Any, sums: Any = None) -> Any:
        """Add a product of tiles to a tile of sums, of the dtype of the array `sums`.

        int32: tiles of int8. float32, or none given: tiles of bfloat16, unless `of_bytes`.
        """
        is_int8 = of_bytes or (isinstance(sums, types.Array) and sums.dtype == types.int32)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            instruction = "tdpbssd" if is_int8 else "tdpbf16ps"
            _call(builder, instruction, INT8(total), INT8(rows), INT8(columns))
            return context.get_dummy_value()

        return types.void(types.Omitted(None) if sums is None else sums), generate

    return dot


zero_00, zero_01, zero_10, zero_11 = (_zero(tile) for tile in range(4))
load_00, load_01, load_10, load_11, load_a0, load_a1, load_b0, load_b1 = (
    _move(tile, "tileloadd64") for tile in range(8)
)
store_00, store_01, store_10, store_11 = (_move(tile, "tilestored64") for tile in range(4))
_PLACES = [(2 * row + column, 4 + row, 6 + column) for row in (0, 1) for column in (0, 1)]
dot_00, dot_01, dot_10, dot_11 = (_dot(*tiles) for tiles in _PLACES)
dot_bytes_00, dot_bytes_01, dot_bytes_10, dot_bytes_11 = (
    _dot(*tiles, of_bytes=True) for tiles in _PLACES
)

FULL_TILES = tile_shapes()


@inlined()
def zero_sums() -> None:
    """Fill the tiles of sums with zeros."""
    zero_00()
    zero_01()
    zero_10()
    zero_11()


@inlined()
def load_sums(sums: Any, start: Any) -> None:
    """Load the tiles of sums from rows of 32, [32, 32]."""
    load_00(sums, start, 128)
    load_01(sums, start + 16, 128)
    load_10(sums, start + 512, 128)
    load_11(sums, start + 528, 128)


@inlined()
def store_sums(sums: Any, start: Any) -> None:
    """Store the tiles of sums in rows of 32, [32, 32]."""
    store_00(sums, start, 128)
    store_01(sums, start + 16, 128)
    store_10(sums, start + 512, 128)
    store_11(sums, start + 528, 128)


@inlined()
def load_tiles(sums: Any, start: Any) -> None:
    """Load the tiles of sums one after the other, [2 columns, 2 rows, 16, 16]."""
    load_00(sums, start, 64)
    load_10(sums, start + 256, 64)
    load_01(sums, start + 512, 64)
    load_11(sums, start + 768, 64)


@inlined()
def store_tiles(sums: Any, start: Any) -> None:
    """Store the tiles of sums one after the other, [2 columns, 2 rows, 16, 16]."""
    store_00(sums, start, 64)
    store_10(sums, start + 256, 64)
    store_01(sums, start + 512, 64)
    store_11(sums, start + 768, 64)


@inlined()
def dot_tiles() -> None:
    """Add the products of both tiles of A with both of B to the sums, in bfloat16."""
    dot_00()
    dot_01()
    dot_10()
    dot_11()
