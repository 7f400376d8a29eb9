"""PreemptionMode: what becomes of the keys and values of a sequence that has to give way."""

from enum import StrEnum


class PreemptionMode(StrEnum):
    """How a preempted sequence gets its keys and values back."""

    SWAP = "swap"
    RECOMPUTE = "recompute"
