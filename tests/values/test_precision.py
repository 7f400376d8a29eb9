"""Number formats: what they take."""

from pagedrun.paged.values.precision import kv_bytes


def test_bytes_of_keys_and_values() -> None:
    """Two layers of three heads of keys and of values, 64 numbers each."""
    vectors = 2 * 2 * 3
    assert kv_bytes(vectors, 64, "float32") == vectors * 256
    assert kv_bytes(vectors, 64, "bfloat16") == vectors * 128
    assert kv_bytes(vectors, 64, "int8") == kv_bytes(vectors, 64, "fp8") == vectors * 68
