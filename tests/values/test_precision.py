"""Number formats: what suits a model on a device, and what is refused."""

from dataclasses import replace

import pytest

from pagedrun.paged.models.model_config import DtypeName
from pagedrun.paged.models.shapes import Shape
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.precision import (
    DTYPE_BYTES,
    KV_DTYPES,
    choose_dtype_name,
    choose_kv_dtype_name,
    kv_bytes,
)

CONFIG = Shape.named("tiny").config


@pytest.mark.parametrize("own", ["float32", "bfloat16", "float16"])
def test_a_gpu_takes_the_models_own(own: DtypeName) -> None:
    config = replace(CONFIG, dtype=own)
    assert choose_dtype_name("auto", config, is_gpu=True) == own


def test_float16_is_not_for_cpus() -> None:
    config = replace(CONFIG, dtype="float16")
    assert choose_dtype_name("auto", config, is_gpu=False) == "float32"
    assert choose_dtype_name("float16", config, is_gpu=True) == "float16"
    with pytest.raises(UsageError, match=r"^--dtype float16 needs a GPU: .*float32 or bfloat16$"):
        choose_dtype_name("float16", config, is_gpu=False)


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_a_cache_in_the_models_own_format(dtype: str) -> None:
    for is_gpu in (True, False):
        assert choose_kv_dtype_name("auto", dtype, is_gpu=is_gpu) is None


@pytest.mark.parametrize("asked", KV_DTYPES)
def test_a_quantised_cache(asked: str) -> None:
    for dtype in ("bfloat16", "float16"):
        assert choose_kv_dtype_name(asked, dtype, is_gpu=True) == KV_DTYPES[asked]
    with pytest.raises(UsageError, match=rf"^--kv-cache-dtype {asked} needs a GPU: "):
        choose_kv_dtype_name(asked, "bfloat16", is_gpu=False)
    with pytest.raises(UsageError, match=r"--dtype bfloat16 or float16 with it"):
        choose_kv_dtype_name(asked, "float32", is_gpu=True)


def test_bytes_of_keys_and_values() -> None:
    """Two layers of three heads of keys and of values, 64 numbers each."""
    vectors = 2 * 2 * 3
    assert kv_bytes(vectors, 64, "float32") == vectors * 256
    assert kv_bytes(vectors, 64, "bfloat16") == vectors * 128
    assert kv_bytes(vectors, 64, "int8") == kv_bytes(vectors, 64, "fp8") == vectors * 68
