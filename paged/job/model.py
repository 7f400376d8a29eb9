"""Models of a job, in this process or in replicas, opened before their weights are read."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.models.model_config import describe_model
from pagedrun.paged.replicas.replica_engine import ReplicaEngine, start_replicas
from pagedrun.paged.text.grammar import Grammars
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.structure import Structure


class ModelFolder:
    """What is known of a model before its weights are read: shape, tokenizer, structures.

    Raises `ModelError` if the shape or the tokenizer cannot be read.
    """

    def __init__(
        self, engine_config: EngineConfig, tokenizer_folder: Path, chat_template: str | None
    ) -> None:
        shape = describe_model(engine_config.model, engine_config.model_impl)
        self.config = shape.held_as(engine_config.quantization, engine_config.model)
        self.tokenizer = Tokenizer.from_folder(tokenizer_folder, chat_template)
        shape = self.config
        self._grammars = Grammars.of(self.tokenizer, shape.vocab_size, shape.eos_token_ids)
        self._engine_config = shape.settings(engine_config)

    def refused(self, structures: Iterable[Structure]) -> dict[Structure, RowError]:
        """Return those that no answer can have, and why."""
        return self._grammars.refused(structures)

    def _arithmetic_on(self, device: Device) -> Mapping[str, object]:
        """Return what the last bits of every answer depend on, as plain JSON values."""
        dtypes, config = device.dtypes, self._engine_config
        arithmetic = device.arithmetic(dtypes.of_model(config.dtype, self.config.dtype))
        return {**arithmetic, **self.config.network.arithmetic()}


class LocalModel(ModelFolder):
    """A model folder whose model runs in this process; implements `interfaces.OpenModel`."""

    def __init__(
        self,
        engine_config: EngineConfig,
        tokenizer_folder: Path,
        chat_template: str | None,
        policy: RunPolicy = DEFAULT_POLICY,
    ) -> None:
        super().__init__(engine_config, tokenizer_folder, chat_template)
        self._policy = policy
        self._device = choose_device(engine_config.device, engine_config.kernel_set)

    def arithmetic(self) -> Mapping[str, object]:
        """Return what the last bits of every answer depend on, as plain JSON values."""
        return self._arithmetic_on(self._device)

    def load_engine(self) -> Engine:
        """Read the weights."""
        config = self._engine_config
        loaded = LoadedModel.load(
            config, self.config, self.tokenizer, device=self._device, grammars=self._grammars
        )
        return Engine(config, loaded, self._policy)


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
