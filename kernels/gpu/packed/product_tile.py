"""How products with weights of few bits are cut."""

from dataclasses import dataclass

import triton

from pagedrun.kernels.gpu import chip

# From as many rows on a matrix is expanded once a call instead of once for every tile of rows. What
# that costs, writing 16 bits a weight and reading them again, is then a third of the product.
EXPAND_ROWS = 512
_MIN_STEPS = 8  # of a part of the inputs: fewer, and starting takes longer than reading
_PROGRAMS_EACH = 2  # that a processor is to have


@dataclass(frozen=True, slots=True)
class ProductTile:
    """What one program computes, the warps and buffers it has, and into how many parts inputs are
    cut, whose sums are added afterwards."""

    rows: int
    columns: int
    num_warps: int
    num_stages: int
    num_parts: int = 1


def invariant_tile(device_chip: chip.Chip) -> ProductTile:
    """Return the tile of a chip that is the same whatever the number of rows.

    A tile unpacks its weights itself: more rows share that, fewer are sooner done with one token.
    """
    stages = 2 if device_chip.backend == "hip" else 3
    return ProductTile(64, 64, num_warps=4, num_stages=stages)


def tile_of(
    num_rows: int, out_features: int, num_steps: int, device_chip: chip.Chip
) -> ProductTile:
    """Return the tile for so many rows, fewer than `EXPAND_ROWS`.

    At few rows reading the weights is what takes the time, and as many programs as the chip has
    room for must read: then the inputs are cut into parts as well.
    """
    stages = 2 if device_chip.backend == "hip" else 3
    if num_rows > 64:
        return ProductTile(128, 64, num_warps=4, num_stages=stages)
    rows = max(16, triton.next_power_of_2(num_rows))
    columns = 64
    wanted = _PROGRAMS_EACH * device_chip.num_processors
    parts = min(wanted // triton.cdiv(out_features, columns), num_steps // _MIN_STEPS)
    return ProductTile(rows, columns, 4, stages, max(parts, 1))
