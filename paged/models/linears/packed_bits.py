"""What the formats of packed codes have in common."""

from pagedrun.paged.files.json_object import JsonObject

MAX_GROUP = 2**20
# Widths that fill a word of 32 bits.
WIDTHS = (2, 4, 8)


def group_size(quantization: JsonObject, name: str, default: int | None = None) -> int | None:
    """Return how many columns have one scale, None where -1 says all of them."""
    if quantization.get(name) == -1:
        return None
    return quantization.integer(name, 1, MAX_GROUP, default)


def num_bits(quantization: JsonObject, name: str) -> int:
    """Return the width of a code; raises `ModelError` for one that does not fill words."""
    bits = quantization.integer(name, 1, 32)
    if bits not in WIDTHS:
        raise quantization.error(name, f"one of {', '.join(map(str, WIDTHS))}")
    return bits


def num_groups(in_features: int, size: int | None) -> int:
    """Return how many groups a row's columns make; the last may have fewer."""
    return 1 if size is None else -(-in_features // size)


def in_order(bits: int) -> tuple[int, ...]:
    """Return the places of a word's codes where the first is in the lowest bits."""
    return tuple(range(32 // bits))
