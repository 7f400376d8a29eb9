"""Number formats of weights, keys and values, by name."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# What `--kv-cache-dtype` calls the number formats of a quantised cache, and torch their dtypes.
KV_DTYPES = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "int8": "int8"}
