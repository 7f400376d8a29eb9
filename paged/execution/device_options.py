"""Number formats and kernel sets of a device, by what the user asked for. Imports no torch."""

from typing import Protocol

from pagedrun.kernels.kernel_set import VARIABLE, KernelSet, multiplies_bfloat16
from pagedrun.paged.values.engine_config import KV_DTYPES
from pagedrun.paged.values.errors import UsageError, option


class DeviceDtypes(Protocol):
    """Chooses dtypes by name, as in `DTYPE_BYTES` and `KV_DTYPES`."""

    def of_model(self, asked: str, own: str) -> str:
        """Return the dtype that a model runs in for `--dtype asked`.

        own: the dtype of the model's config. Raises `UsageError` for one that the device refuses.
        """
        ...

    def of_cache(self, asked: str, model: str) -> str | None:
        """Return the cache's dtype for `--kv-cache-dtype asked`, None for the model's own.

        model: the dtype that the model runs in. Raises `UsageError` for one that the device or the
        model's dtype does not go with.
        """
        ...


class CpuDtypes:
    """The model's own where the processor is fast in it, float32 otherwise.

    float16 models run in float32: no CPU multiplies float16 fast, and bfloat16 would drop three of
    their bits. A quantised cache goes with both: float32 may be there for speed, not for digits.
    """

    def of_model(self, asked: str, own: str) -> str:
        """Return the dtype of a model; raises `UsageError` for float16."""
        if asked == "float16":
            raise UsageError(
                f"{option('dtype')} float16 needs a GPU: CPUs multiply it slowly; use float32 or "
                "bfloat16"
            )
        if asked != "auto":
            return asked
        return own if own == "bfloat16" and multiplies_bfloat16() else "float32"

    def of_cache(self, asked: str, model: str) -> str | None:
        """Return the dtype of a cache."""
        return KV_DTYPES.get(asked)


class GpuDtypes:
    """The model's own, and a quantised cache beside a model in 16 bits."""

    def of_model(self, asked: str, own: str) -> str:
        """Return the dtype of a model."""
        return own if asked == "auto" else asked

    def of_cache(self, asked: str, model: str) -> str | None:
        """Return the dtype of a cache.

        Raises `UsageError` for a quantised one beside a float32 model, whose digits it would throw
        away.
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
    """Return the set for `--kernel-set asked`; "auto" is the fastest that this processor runs.

    Raises `UsageError` for one that it cannot run.
    """
    try:
        return KernelSet.best() if asked == "auto" else KernelSet.named(asked)
    except ValueError as error:
        where = VARIABLE if asked == "auto" else f"{option('kernel_set')} {asked}"
        raise UsageError(f"{where}: {error}") from error
