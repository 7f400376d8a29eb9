"""Number formats of weights, keys and values, by name."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# What `--kv-cache-dtype` calls the number formats of a quantised cache, and torch their dtypes.
KV_DTYPES = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "int8": "int8"}
_SCALE_BYTES = 4  # of one float32 for each head of each token


def kv_bytes(num_vectors: int, head_dim: int, dtype: str) -> int:
    """Return the bytes of so many heads of keys or values; dtype: a key of one of the tables."""
    if dtype in KV_DTYPES:
        return num_vectors * (head_dim + _SCALE_BYTES)
    return num_vectors * head_dim * DTYPE_BYTES[dtype]
