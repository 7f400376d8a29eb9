"""Way: one way of running a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class Way:
    """The model in `folder`, or a GGUF file, run with `flags`, fields of `EngineConfig`.

    `tokenizer_folder` has another tokenizer than the model's own. Raises `UsageError` for a value
    out of range.
    """

    name: str
    folder: Path
    flags: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_folder: Path | None = None

    def __post_init__(self) -> None:
        _ = self.config

    @property
    def config(self) -> EngineConfig:
        """The engine's settings."""
        return EngineConfig(model=self.folder, **self.flags)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raises `ModelError`."""
        return Tokenizer.from_folder(self.tokenizer_folder or self.folder)

    def shape(self) -> ModelConfig:
        """Return the model's shape; raises `ModelError`."""
        return ModelConfig.from_folder(self.folder)

    def engine(self, tokenizer: Tokenizer) -> Engine:
        """Load the model; raises `ModelError`, and `UsageError` for what the device refuses."""
        return Engine(self.config, LoadedModel.load(self.config, self.shape(), tokenizer))
