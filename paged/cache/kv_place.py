"""KVPlace: where a layer has its keys and values."""

from typing import NamedTuple


class KVPlace(NamedTuple):
    """The group of layers that it is of, and its place among them."""

    group: int
    layer: int
