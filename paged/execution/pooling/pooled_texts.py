"""Vectors, scores and labels of texts from Python."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.pooling.pairs import Given, pair_texts
from pagedrun.paged.execution.pooling.pooling_engine import PoolingEngine
from pagedrun.paged.execution.pooling.texts import PooledTextEncoder, TextLimits
from pagedrun.paged.metrics.report_sections import empty_engine_report
from pagedrun.paged.models.pooler_spec import PooledModelSpec
from pagedrun.paged.text.prompt import Overlong
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.pooling import PoolingParams, Task


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """Document of a query by its index, and its score."""

    index: int
    score: float


@dataclass(frozen=True, slots=True)
class Classification:
    """Label of a text, and the probability of each label."""

    label: str
    scores: dict[str, float]


class PooledTexts:
    """Model without a head, and the pooler of the last call, which is kept for its settings.

    `report` is that of the last call. `max_length` is the longest text, in tokens.
    """

    def __init__(self, config: EngineConfig, folder: Path, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.report = empty_engine_report()
        described = PooledModelSpec.read_network(folder).held_as(config.quantization, folder)
        self._config = described.settings(config)
        limit = described.max_position_embeddings
        self.max_length = min(limit, config.max_model_len or limit)
        self._loaded = LoadedModel.load(self._config, described, tokenizer)
        self._last: tuple[PoolingParams, PoolingEngine] | None = None

    def embed(
        self, texts: Sequence[str], on_overlong: Overlong, **settings: Any
    ) -> NDArray[np.float32]:
        """Return the vectors of texts, [num_texts, size]; settings: of `PoolingParams`."""
        params = PoolingParams(task=Task.EMBED, **settings)
        engine, in_chunks = self._engine(params), params.chunks is not None
        rows = self._run(engine, [[each] for each in texts], on_overlong, in_chunks=in_chunks)
        return (
            np.stack([each[0] for each in rows])
            if rows
            else np.empty((0, engine.pooler.size), np.float32)
        )

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        on_overlong: Overlong,
        top_n: int | None,
        **settings: Any,
    ) -> list[RankedDocument]:
        """Return the documents of a query, best first; settings: of `PoolingParams`."""
        if not documents:
            return []
        params = PoolingParams(task=Task.RERANK, top_n=top_n, **settings)
        engine = self._engine(replace(params, top_n=None))
        given = pair_texts(query, documents, engine.spec, params)
        (scores,) = self._run(engine, [given], on_overlong)
        order = np.argsort(-scores[:, 0], kind="stable")[:top_n]
        return [RankedDocument(each, float(scores[each, 0])) for each in order.tolist()]

    def classify(self, texts: Sequence[Given], on_overlong: Overlong) -> list[Classification]:
        """Return label and probabilities of texts, or of pairs of texts."""
        engine = self._engine(PoolingParams(task=Task.CLASSIFY))
        rows = self._run(engine, [[each] for each in texts], on_overlong)
        labels = engine.spec.pooler.labels
        found = []
        for (scores,) in rows:
            by_label = dict(zip(labels, scores.tolist(), strict=True))
            found.append(Classification(labels[int(scores.argmax())], by_label))
        return found

    def _engine(self, params: PoolingParams) -> PoolingEngine:
        """Return the engine of a task, with its pooler; raises as `PooledModelSpec.read`."""
        if self._last is None or self._last[0] != params:
            spec = PooledModelSpec.read(self._config.model, params)
            spec = replace(spec, config=self._loaded.config)  # type: ignore[arg-type]
            spec = spec.with_answers(self.tokenizer.encode_batch(["no", "yes"], False))
            self._last = params, PoolingEngine.load(self._config, self._loaded, spec)
        return self._last[1]

    def _run(
        self,
        engine: PoolingEngine,
        rows: Sequence[Sequence[Given]],
        on_overlong: Overlong,
        *,
        in_chunks: bool = False,
    ) -> list[NDArray[np.float32]]:
        """Return the result of each row; raises `RowError` for an invalid one."""
        spec = engine.spec
        most = min(spec.max_length, self._config.max_model_len or spec.max_length)
        limits = TextLimits(most, spec.config.vocab_size, on_overlong, in_chunks)
        encoder = PooledTextEncoder(self.tokenizer, spec, limits)
        encoded = encoder.requests(range(len(rows)), rows)
        for index, each in enumerate(encoded):
            if each.error is not None:
                error = each.error
                message = f"text {index}: {error.marked}"
                raise RowError(error.code, message, param=error.param)
        requests = [each.request for each in encoded if each.request is not None]
        run = engine.start(requests)
        found: dict[int, NDArray[np.float32]] = {}
        try:
            for completion in run:
                if completion.error is not None or completion.pooled is None:
                    raise completion.error or RowError("no_result", "the text has no result")
                found[completion.request.index] = completion.pooled
        finally:
            run.close()
            self.report = run.report()
        return [found[request.index] for request in requests]


def texts_of(given: object, name: str) -> list[str]:
    """Return texts of an argument; `UsageError` for anything else."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise UsageError(f"{option(name)} must be a list of texts")
    for each in given:
        if not isinstance(each, str):
            raise UsageError(f"{option(name)} must be texts, not {type(each).__name__}")
    return list(given)
