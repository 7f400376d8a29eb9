"""WindowSize: how much of an input is planned at once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowSize:
    """A window ends after `rows` rows, or after the row with which it exceeds `num_bytes` bytes.

    What rows share decides how they are computed, so the same file must be cut at the same places
    everywhere: no flag sets it.
    """

    rows: int = 2**20
    num_bytes: int = 2**28
