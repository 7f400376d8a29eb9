"""BlockTransfer: one block's bytes to move before a step is computed."""

from dataclasses import dataclass
from enum import Enum


class TransferKind(Enum):
    """Which memory a block moves between."""

    COPY = "copy"  # pool → pool, for copy-on-write
    SWAP_OUT = "swap_out"  # pool → host
    SWAP_IN = "swap_in"  # host → pool
    LOAD = "load"  # staged from the prefix store → pool


@dataclass(frozen=True, slots=True)
class BlockTransfer:
    """One block's bytes to move, in one group of layers. Transfers run in the order in which they
    were scheduled: a block freed by one may be the target of the next."""

    kind: TransferKind
    source: int
    target: int
    group: int = 0
