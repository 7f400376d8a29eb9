"""PrefixTile: how one program of prefix attention walks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefixTile:
    """Rows of the query matrix, and keys at a time."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int
