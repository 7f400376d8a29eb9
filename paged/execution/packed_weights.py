"""Location of a model's packed weights, the same for `plan` and a run. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path

from pagedrun.kernels.environment.code_folder import private_folder
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.paged.cache.prefix_store.folder import stamps
from pagedrun.paged.execution.device_options import cpu_arithmetic
from pagedrun.paged.models.runnable_config import RunnableConfig, model_identity
from pagedrun.paged.models.streaming.packed_folder import PackedFolder
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError, option


def packed_folder(
    config: EngineConfig,
    model: RunnableConfig,
    files: Sequence[Path],
    kernel_set: KernelSet,
    dtype: str,
    *,
    create: bool = True,
) -> PackedFolder:
    """Return the folder of a model's packed weights, which may still be empty.

    files: of the checkpoint. create: make the folder if it is missing. Raises `UsageError` if there
    is no place for it.
    """
    root = config.packed_dir or private_folder("packed")
    if root is None:
        raise UsageError(
            "the user's cache folder cannot be used for packed weights; name another with "
            f"{option('packed_dir')}"
        )
    identity = {
        "files": stamps(files),
        **model_identity(model),
        **cpu_arithmetic(kernel_set, dtype),
        "activations": config.activations,
    }
    return PackedFolder(Path(root), identity, create=create)
