"""The model of a job that replicas compute: nothing of its weights is read in this process."""

from collections.abc import Mapping
from pathlib import Path

from pagedrun.paged.execution.devices.device_choice import choose_device
from pagedrun.paged.job.model import ModelFolder
from pagedrun.paged.replicas.cluster.start_replicas import start_replicas
from pagedrun.paged.replicas.replica_engine import ReplicaEngine
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig


class ReplicatedModel(ModelFolder):
    """A model folder whose model runs in several processes; implements `interfaces.OpenModel`."""

    def __init__(
        self,
        engine_config: EngineConfig,
        tokenizer_folder: Path,
        chat_template: str | None,
        replicas: ReplicaConfig,
        stall_timeout_s: float,
    ) -> None:
        """stall_timeout_s: the most seconds that a step may take, 0 for any."""
        super().__init__(engine_config, tokenizer_folder, chat_template)
        self._tokenizer_folder = tokenizer_folder
        self._replicas = replicas
        self._stall_timeout_s = stall_timeout_s
        self._engine: ReplicaEngine | None = None

    def arithmetic(self) -> Mapping[str, object]:
        """Return what the last bits of every answer depend on; of other machines they say it."""
        if self._replicas.ray_address is not None:
            return self.load_engine().arithmetic()
        config = self._engine_config
        return self._arithmetic_on(choose_device(config.device, config.kernel_set))

    def load_engine(self) -> ReplicaEngine:
        """Start the replicas, and wait until they have read the weights."""
        if self._engine is None:
            self._engine = start_replicas(
                self._engine_config, self._tokenizer_folder, self._replicas, self._stall_timeout_s
            )
            self._engine.warm_up()
        return self._engine
