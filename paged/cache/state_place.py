"""StatePlace: where a recurrent layer has its states."""

from typing import NamedTuple


class StatePlace(NamedTuple):
    """Its place among the recurrent layers."""

    layer: int
