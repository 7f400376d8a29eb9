"""Engines of tiny encoders."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pagedrun.paged.execution.pooling.pooling_engine import PoolingEngine
from pagedrun.paged.execution.pooling.texts import PooledTextEncoder, TextLimits
from pagedrun.paged.job.model import PooledModel
from pagedrun.paged.models.pooler import Rows
from pagedrun.paged.text.prompt import Overlong
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.pooling import PoolingParams, Task
from pagedrun.paged.values.request import Request


def pooled_model(
    folder: Path,
    task: Task = Task.EMBED,
    engine: dict[str, Any] | None = None,
    **params: Any,
) -> PooledModel:
    """Return a model; engine: fields of its `EngineConfig`; params: of `PoolingParams`."""
    config = EngineConfig.fitting(model=folder, dtype="float32", device="cpu")
    return PooledModel(
        replace(config, **(engine or {})), folder, PoolingParams(task=task, **params)
    )


def requests(
    model: PooledModel, texts: list[Any], on_overlong: Overlong = Overlong.ERROR
) -> list[Request]:
    """Return a request for each text, or pair of texts."""
    limits = TextLimits(model.spec.max_length, model.config.vocab_size, on_overlong)
    encoder = PooledTextEncoder(model.tokenizer, model.spec, limits)
    encoded = encoder.requests(range(len(texts)), [[each] for each in texts])
    found = [each.request for each in encoded if each.request is not None]
    assert len(found) == len(texts)
    return found


def results(engine: PoolingEngine, asked: list[Request]) -> dict[int, Rows]:
    """Return the first part of each result by the index of its request."""
    found = {}
    for completion in engine.start(asked):
        assert completion.pooled is not None, completion.error
        found[completion.request.index] = completion.pooled[0]
    return found
