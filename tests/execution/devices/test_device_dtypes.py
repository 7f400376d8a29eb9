"""Number formats: what suits a model on a device, and what is refused."""

import platform

import pytest

from pagedrun.kernels import kernel_set as processor
from pagedrun.paged.execution.device_options import CpuDtypes, GpuDtypes
from pagedrun.paged.values.engine_config import DTYPE_BYTES, KV_DTYPES
from pagedrun.paged.values.errors import UsageError

CPU, GPU = CpuDtypes(), GpuDtypes()


@pytest.mark.parametrize("own", DTYPE_BYTES)
def test_a_gpu_takes_the_models_own(own: str) -> None:
    assert GPU.of_model("auto", own) == own


def test_float16_is_not_for_cpus() -> None:
    assert CPU.of_model("auto", "float16") == "float32"
    assert GPU.of_model("float16", "float16") == "float16"
    with pytest.raises(UsageError, match=r"^dtype float16 needs a GPU: .*float32 or bfloat16$"):
        CPU.of_model("float16", "float16")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="x86-64 instructions")
@pytest.mark.parametrize(
    ("features", "chosen"),
    [
        ({"avx2", "fma"}, "float32"),
        ({"avx2", "fma", "avx512f", "avx512vnni"}, "float32"),
        ({"avx2", "fma", "avx512f", "avx512bf16"}, "bfloat16"),
        ({"avx2", "fma", "amx-tile", "amx-bf16"}, "bfloat16"),
    ],
)
def test_torch_computes_in_bfloat16_where_the_processor_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, features: set[str], chosen: str
) -> None:
    monkeypatch.setattr(processor, "features", lambda: frozenset(features))
    assert CPU.of_model("auto", "bfloat16", by_torch=True) == chosen
    assert CPU.of_model("auto", "bfloat16") == "bfloat16"
    assert CPU.of_model("auto", "float32") == "float32"
    assert CPU.of_model("bfloat16", "bfloat16") == "bfloat16"


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_a_cache_in_the_models_own_format(dtype: str) -> None:
    assert CPU.of_cache("auto", dtype) is GPU.of_cache("auto", dtype) is None


@pytest.mark.parametrize("asked", KV_DTYPES)
def test_a_quantised_cache(asked: str) -> None:
    for device, dtypes in ((CPU, ("bfloat16", "float32")), (GPU, ("bfloat16", "float16"))):
        for dtype in dtypes:
            assert device.of_cache(asked, dtype) == KV_DTYPES[asked]
    with pytest.raises(UsageError, match=r"use it with .*dtype bfloat16 or float16"):
        GPU.of_cache(asked, "float32")
