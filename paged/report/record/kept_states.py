"""KeptStates: what became of the states that were kept for later rows."""

from dataclasses import dataclass


@dataclass(slots=True)
class KeptStates:
    """States since the run began: those that were `kept`, and how many sequences have `found` one
    to begin with."""

    kept: int = 0
    found: int = 0
