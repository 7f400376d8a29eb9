"""BlockType: how a GGUF file stores the numbers of a tensor."""

from typing import NamedTuple


class BlockType(NamedTuple):
    """A row of a tensor is blocks of `num_weights` numbers, each in `num_bytes` bytes."""

    name: str
    num_weights: int
    num_bytes: int


# By their numbers in files, as ggml.h counts them.
BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    30: BlockType("BF16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
}
# Those of quantised numbers.
PACKED_TYPES = tuple(each.name for each in BLOCK_TYPES.values() if each.num_weights > 1)
