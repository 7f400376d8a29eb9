"""What turns a quantised KV memory back into keys and values."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVScales:
    """One scale for each head of each token of a KV memory in int8 or float8_e4m3fn.

    The key at a slot is `key_cache[slot] * keys[slot]`, the value `value_cache[slot] *
    values[slot]`. Like the cache itself, the scale of a slot that is not written is undefined, and
    may be NaN.

    keys, values: [num_blocks, num_kv_heads, block_size] float32, laid out as the caches are.
    """

    keys: Tensor
    values: Tensor
