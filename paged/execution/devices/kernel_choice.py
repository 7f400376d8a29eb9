"""Which kernel set a run on a CPU multiplies with."""

from pagedrun.kernels.kernel_set import VARIABLE, KernelSet
from pagedrun.paged.values.errors import UsageError, option


def choose_kernel_set(asked: str) -> KernelSet:
    """Return the set for `--kernel-set asked`; "auto" is the fastest that this processor runs.

    Raises `UsageError` for one that it cannot run.
    """
    try:
        return KernelSet.best() if asked == "auto" else KernelSet.named(asked)
    except ValueError as error:
        where = VARIABLE if asked == "auto" else f"{option('kernel_set')} {asked}"
        raise UsageError(f"{where}: {error}") from error
