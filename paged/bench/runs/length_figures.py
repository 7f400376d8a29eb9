"""Numbers of tokens as results state them."""

from typing import TypedDict


class LengthRange(TypedDict):
    """As `Lengths`, both included."""

    low: int
    high: int


TokenCount = int | LengthRange  # of all rows, or the range that each draws its own from
