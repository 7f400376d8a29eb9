"""ReplicatedEngine: an engine for Python users, whose every run starts replicas of its own."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from pathlib import Path

from pagedrun.paged.models.runnable_config import RunnableConfig
from pagedrun.paged.replicas.cluster.start_replicas import start_replicas
from pagedrun.paged.replicas.replica_run import ReplicaRun
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig
from pagedrun.paged.values.request import Completion, Request


class ReplicatedEngine:
    """Loads nothing in this process. Replicas are started by each `start`, and end with the run."""

    def __init__(
        self, config: EngineConfig, shape: RunnableConfig, tokenizer: Path, replicas: ReplicaConfig
    ) -> None:
        """tokenizer: its folder. Raises `ModelError` where the model cannot be held as asked."""
        self._config = shape.held_as(config.quantization, config.model).settings(config)
        self._limit = shape.max_position_embeddings
        self._tokenizer = tokenizer
        self._replicas = replicas

    @property
    def max_model_len(self) -> int:
        """The most tokens a prompt and its answer may have together."""
        return min(self._limit, self._config.max_model_len or self._limit)

    def start(
        self,
        requests: Seq[Request | Completion],
        *,
        more: Iterable[Seq[Request | Completion]] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> ReplicaRun:
        """Start the replicas, plan the requests and return their run; see `Engine.start`."""
        engine = start_replicas(self._config, self._tokenizer, self._replicas, 0.0)
        return engine.start(requests, more=more, warn=warn)
