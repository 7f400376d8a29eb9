"""Engines of a tiny model with random weights, and configs of published models."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
from transformers import PreTrainedTokenizerFast

from pagedrun.kernels.ops import Backend
from pagedrun.paged import bench
from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.logits.logits_processor import LogitsProcessor
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.checkpoint import RandomWeights
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig


@functools.cache
def _published() -> Mapping[str, dict[str, Any]]:
    fields: dict[str, dict[str, Any]] = json.loads(
        (Path(bench.__file__).parent / "model_shapes.json").read_bytes()
    )
    return fields


def published_fields(name: str) -> dict[str, Any]:
    """Return the config.json of a published model, or of the `tiny` one."""
    return _published()[name]


def published_config(name: str, **changes: Any) -> ModelConfig:
    """Return the config of a published model, or of the `tiny` one, with changed fields."""
    return ModelConfig.from_json(JsonObject(name, {**published_fields(name), **changes}))


def tiny_config(num_layers: int = 2) -> ModelConfig:
    """Return a Qwen3 of two layers, 512 tokens."""
    return published_config("tiny", num_hidden_layers=num_layers)


def tiny_tokenizer(config: ModelConfig) -> Tokenizer:
    """Return a tokenizer whose tokens are numbers."""
    words = {str(token_id): token_id for token_id in range(config.vocab_size)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0"))
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), None)


def tiny_engine(
    kernels: Backend | None = None,
    on: Device | None = None,
    num_layers: int = 2,
    processors: Sequence[LogitsProcessor] | None = None,
    model: ModelConfig | None = None,
    **flags: Any,
) -> Engine:
    """Return an engine of the tiny model, or of `model`. flags: fields of `EngineConfig`.

    `on` replaces the device of the flags, `kernels` those of the device, `processors` those that
    `LoadedModel.load` chooses.
    """
    model = model or tiny_config(num_layers)
    config = EngineConfig.fitting(model=Path("tiny"), **flags)
    device = on or choose_device(config.device, config.kernel_set, config.activations)
    if kernels is not None:
        device = replace(device, kernels=kernels)
    weights = RandomWeights(model, device.dtype(config.dtype, model.dtype), 0, device.torch_device)
    loaded = LoadedModel.load(
        config,
        model,
        tiny_tokenizer(model),
        device=device,
        read=weights.read,
        processors=processors,
    )
    return Engine(config, loaded)
