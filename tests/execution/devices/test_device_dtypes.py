"""Number formats: what suits a model on a device, and what is refused."""

import pytest

from pagedrun.paged.execution.devices.device_dtypes import CpuDtypes, GpuDtypes
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.precision import DTYPE_BYTES, KV_DTYPES

CPU, GPU = CpuDtypes(), GpuDtypes()


@pytest.mark.parametrize("own", DTYPE_BYTES)
def test_a_gpu_takes_the_models_own(own: str) -> None:
    assert GPU.of_model("auto", own) == own


def test_float16_is_not_for_cpus() -> None:
    assert CPU.of_model("auto", "float16") == "float32"
    assert GPU.of_model("float16", "float16") == "float16"
    with pytest.raises(UsageError, match=r"^dtype float16 needs a GPU: .*float32 or bfloat16$"):
        CPU.of_model("float16", "float16")


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_a_cache_in_the_models_own_format(dtype: str) -> None:
    assert CPU.of_cache("auto", dtype) is GPU.of_cache("auto", dtype) is None


@pytest.mark.parametrize("asked", KV_DTYPES)
def test_a_quantised_cache(asked: str) -> None:
    for device, dtypes in ((CPU, ("bfloat16", "float32")), (GPU, ("bfloat16", "float16"))):
        for dtype in dtypes:
            assert device.of_cache(asked, dtype) == KV_DTYPES[asked]
    with pytest.raises(UsageError, match=r"dtype bfloat16 or float16 with it"):
        GPU.of_cache(asked, "float32")
