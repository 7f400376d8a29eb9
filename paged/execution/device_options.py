"""Number formats and kernel sets of a device, by the options of the user. Imports no torch."""

from importlib.metadata import version
from typing import Protocol, TypedDict

from pagedrun.kernels.kernel_set import VARIABLE, KernelSet, multiplies_bfloat16
from pagedrun.kernels.quantized_form import Activations
from pagedrun.paged.values.engine_config import KV_DTYPES
from pagedrun.paged.values.errors import UsageError, option


class DeviceDtypes(Protocol):
    """Chooses dtypes by name, as in `DTYPE_BYTES` and `KV_DTYPES`."""

    def of_model(self, asked: str, own: str, *, by_torch: bool = False) -> str:
        """Return the dtype of a model for `--dtype asked`.

        own: the dtype in the config of the model. by_torch: see `RunnableConfig`. Raises
        `UsageError` for a dtype that the device does not support.
        """
        ...

    def of_cache(self, asked: str, model: str) -> str | None:
        """Return the dtype of the cache for `--kv-cache-dtype asked`, None for that of the model.

        model: the dtype of the model. Raises `UsageError` for a dtype that the device, or a model
        in that dtype, does not support.
        """
        ...


class CpuDtypes:
    """The dtype of the model, but for float16, and where torch multiplies bfloat16 slowly.

    Our products of bfloat16 take half the memory of float32 and no more time, on any processor.
    float16 models run in float32: no CPU multiplies float16 fast, and bfloat16 would drop three
    bits. A quantized cache is allowed with both, since float32 may be used for speed, not for
    precision.
    """

    def of_model(self, asked: str, own: str, *, by_torch: bool = False) -> str:
        """Return the dtype of a model; raises `UsageError` for float16."""
        if asked == "float16":
            raise UsageError(
                f"{option('dtype')} float16 needs a GPU: CPUs multiply it slowly; use float32 or "
                "bfloat16"
            )
        if asked != "auto":
            return asked
        is_fast = not by_torch or multiplies_bfloat16()
        return own if own == "bfloat16" and is_fast else "float32"

    def of_cache(self, asked: str, model: str) -> str | None:
        """Return the dtype of a cache."""
        return KV_DTYPES.get(asked)


class GpuDtypes:
    """The dtype of the model, and a quantized cache for 16-bit models."""

    def of_model(self, asked: str, own: str, *, by_torch: bool = False) -> str:
        """Return the dtype of a model."""
        return own if asked == "auto" else asked

    def of_cache(self, asked: str, model: str) -> str | None:
        """Return the dtype of a cache.

        Raises `UsageError` for a quantized cache of a float32 model, whose precision would be lost.
        """
        if asked == "auto":
            return None
        if model == "float32":
            raise UsageError(
                f"{option('kv_cache_dtype')} {asked} is less precise than {option('dtype')} "
                f"float32 on a GPU; use it with {option('dtype')} bfloat16 or float16, or leave "
                "it at auto"
            )
        return KV_DTYPES[asked]


def choose_kernel_set(asked: str) -> KernelSet:
    """Return the set for `--kernel-set asked`; "auto" is the fastest that this processor supports.

    Raises `UsageError` for a set that it does not support.
    """
    try:
        return KernelSet.best() if asked == "auto" else KernelSet.named(asked)
    except ValueError as error:
        where = VARIABLE if asked == "auto" else f"{option('kernel_set')} {asked}"
        raise UsageError(f"{where}: {error}") from error


def cpu_arithmetic(kernel_set: KernelSet, dtype: str) -> dict[str, object]:
    """Return the facts that decide the last bits of a model in `dtype` on a CPU."""
    return {"device": "cpu", **kernel_set.describe(dtype), "numba": version("numba")}


def gpu_activations(asked: str) -> Activations:
    """Return the inputs of layers with quantized weights for `--activations asked` on a GPU.

    Raises `UsageError` for int8, which its kernels do not round to.
    """
    if asked == Activations.INT8:
        raise UsageError(
            f"{option('activations')} int8 needs a CPU: a GPU multiplies quantized weights by "
            f"unchanged inputs; use auto or exact, or {option('device')} cpu"
        )
    return Activations.EXACT


class GpuDescription(TypedDict, total=False):
    """Name, memory in bytes, and driver runtime of a GPU; empty for a CPU."""

    name: str
    memory: int
    num_processors: int
    capability: str
    runtime: str | None
