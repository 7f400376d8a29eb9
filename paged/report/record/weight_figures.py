"""WeightFigures: what reports and plans say of a model's weights."""

from typing import TypedDict


class WeightFigures(TypedDict):
    """`weights`: `count` numbers, the bytes that hold them, and the bits of one on average.

    `stored`: the tensors that are read, in their files, scales of quantised ones included; None
    where there are no files. `held`: in memory.
    """

    count: int
    stored_bytes: int | None
    stored_bits: float | None
    held_bytes: int
    held_bits: float


def weight_figures(count: int, stored_bytes: int | None, held_bytes: int) -> WeightFigures:
    """Return the figures of `count` weights."""
    return {
        "count": count,
        "stored_bytes": stored_bytes,
        "stored_bits": None if stored_bytes is None else 8 * stored_bytes / count,
        "held_bytes": held_bytes,
        "held_bits": 8 * held_bytes / count,
    }
