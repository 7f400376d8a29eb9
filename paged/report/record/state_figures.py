"""StateFigures: what the report says of the states of recurrent layers."""

from typing import TypedDict


class StateFigures(TypedDict):
    """The report's `states` object, of a model with recurrent layers.

    A slot holds what all of these layers keep of one sequence. `kept_states` were kept for
    others to begin with, and `found_states` is how many sequences began with one.
    """

    num_slots: int
    bytes_per_slot: int
    pool_bytes: int
    peak_slots: int
    peak_bytes: int
    kept_states: int
    found_states: int
