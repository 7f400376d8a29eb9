"""BenchModel: what a benchmark runs, a model folder or a shape with random weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import torch

from pagedrun.kernels.backend import Backend
from pagedrun.paged.bench.model_shapes import Shape
from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.models.checkpoint.model_tensors import RandomWeights
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig


class ModelDescription(TypedDict):
    """`model`."""

    name: str
    weights: str
    dtype: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int


SEED = 0


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model by name, with its shape; `folder` is None where weights are made up."""

    name: str
    config: ModelConfig
    folder: Path | None = None
    fields: Mapping[str, Any] | None = None  # of config.json, where there is no folder

    @classmethod
    def from_shape(cls, name: str, num_layers: int | None = None) -> "BenchModel":
        """Return a model of a named shape with random weights; raises `UsageError`."""
        shape = Shape.named(name, num_layers)
        return cls(name, shape.config, fields=shape.fields)

    @classmethod
    def from_folder(cls, folder: Path) -> "BenchModel":
        """Return the model in a folder; raises `ModelError`."""
        return cls(folder.name, ModelConfig.from_folder(folder), folder)

    def engine(
        self, kernels: Backend | None = None, on: Device | None = None, **flags: Any
    ) -> Engine:
        """Load the model, or make it up. `flags` are fields of `EngineConfig`.

        `on` replaces the device of the flags, `kernels` those of the device.
        """
        config = EngineConfig.fitting(model=self.folder or Path(self.name), **flags)
        device = on or choose_device(config.device, config.kernel_set)
        if kernels is not None:
            device = replace(device, kernels=kernels)
        read = None
        if self.folder is None:
            dtype = device.dtype(config.dtype, self.config.dtype)
            read = self.weights(dtype, device.torch_device).read
        loaded = LoadedModel.load(config, self.config, self.tokenizer(), device=device, read=read)
        return Engine(config, loaded)

    def weights(self, dtype: torch.dtype, device: torch.device | None = None) -> RandomWeights:
        """Return weights in the place of a folder's, made on `device`, None: the CPU."""
        return RandomWeights(self.config, dtype, SEED, device)

    def tokenizer(self) -> Tokenizer:
        """Return the folder's tokenizer, or one whose tokens are written as their numbers."""
        if self.folder is not None:
            return Tokenizer.from_folder(self.folder)
        import tokenizers
        from transformers import PreTrainedTokenizerFast  # imported here: it takes long

        words = {str(token_id): token_id for token_id in range(self.config.vocab_size)}
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0"))
        return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), None)

    def describe(self, dtype: torch.dtype) -> ModelDescription:
        """Return what a result says of its model."""
        config = self.config
        return {
            "name": self.name,
            "weights": "from its folder" if self.folder else f"random, seed {SEED}",
            "dtype": str(dtype).removeprefix("torch."),
            "num_layers": config.num_layers,
            "hidden_size": config.hidden_size,
            "num_heads": config.num_heads,
            "num_kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "vocab_size": config.vocab_size,
        }
