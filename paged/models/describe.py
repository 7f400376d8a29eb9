"""Which description a model folder has: that of pagedrun's own families, or of the library."""

from pathlib import Path

from pagedrun.paged.models.library.library_config import LibraryConfig
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.runnable_config import RunnableConfig


def describe_model(folder: str | Path, model_impl: str) -> RunnableConfig:
    """Read a folder's config.json for the code that `model_impl` names; see `EngineConfig`.

    Raises `ModelError` for a model that this code does not run.
    """
    if model_impl == "transformers":
        return LibraryConfig.from_folder(folder)
    return ModelConfig.from_folder(folder)
