"""Models of a job, in this process or in replicas, opened before their weights are read."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.pooling.pooling_engine import PoolingEngine
from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.job.open_model import ModelFolder, PooledFolder
from pagedrun.paged.models.checkpoint.header import CheckpointHeader
from pagedrun.paged.models.linear_layers import LinearLayers
from pagedrun.paged.replicas.replica_engine import ReplicaEngine, start_replicas
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig
from pagedrun.paged.values.pooling import PoolingParams


def _arithmetic(model: ModelFolder | PooledFolder, device: Device) -> Mapping[str, object]:
    """Return everything that the last bits of answers depend on, as plain JSON values."""
    config, kernels = model.config, device.kernels
    dtype = device.dtypes.of_model(model.settings.dtype, config.dtype, by_torch=config.by_torch)
    linears = LinearLayers.of_checkpoint(
        config,
        CheckpointHeader.read(model.settings.model),
        kernels.code_kernels,
        dtype,
        kernels.activations,
    )
    return {**device.arithmetic(dtype), **config.network.arithmetic(), **linears.arithmetic()}


class LocalModel(ModelFolder):
    """Model that runs in this process; implements `interfaces.OpenModel`."""

    def __init__(
        self,
        engine_config: EngineConfig,
        tokenizer_folder: Path,
        chat_template: str | None,
        policy: RunPolicy = DEFAULT_POLICY,
    ) -> None:
        super().__init__(engine_config, tokenizer_folder, chat_template)
        self._policy = policy
        config = engine_config
        self._device = choose_device(config.device, config.kernel_set, config.activations)

    def arithmetic(self) -> Mapping[str, object]:
        """Return everything that the last bits of answers depend on, as plain JSON values."""
        return _arithmetic(self, self._device)

    def load_engine(self) -> Engine:
        """Read the weights."""
        config = self.settings
        loaded = LoadedModel.load(
            config, self.config, self.tokenizer, device=self._device, grammars=self.grammars
        )
        return Engine(config, loaded, self._policy)


class PooledModel(PooledFolder):
    """Model of a task that runs in this process; implements `interfaces.OpenModel`."""

    def __init__(
        self, engine_config: EngineConfig, tokenizer_folder: Path, params: PoolingParams
    ) -> None:
        super().__init__(engine_config, tokenizer_folder, params)
        config = engine_config
        self._device = choose_device(config.device, config.kernel_set, config.activations)

    def arithmetic(self) -> Mapping[str, object]:
        """Return everything that the last bits of results depend on, as plain JSON values."""
        return {**_arithmetic(self, self._device), **self.spec.identity}

    def load_engine(self) -> PoolingEngine:
        """Read the weights."""
        loaded = LoadedModel.load(self.settings, self.config, self.tokenizer, device=self._device)
        return PoolingEngine.load(self.settings, loaded, self.spec)


class ReplicatedPooledModel(PooledFolder):
    """Model of a task that runs in several processes; implements `interfaces.OpenModel`."""

    def __init__(
        self,
        engine_config: EngineConfig,
        tokenizer_folder: Path,
        params: PoolingParams,
        replicas: ReplicaConfig,
        stall_timeout_s: float,
    ) -> None:
        """stall_timeout_s: limit of an engine step in seconds, 0 for none."""
        super().__init__(engine_config, tokenizer_folder, params)
        self._replicas = _Replicas(
            self.settings, tokenizer_folder, replicas, stall_timeout_s, params
        )

    def arithmetic(self) -> Mapping[str, object]:
        """Return the same; for other machines the replicas are asked."""
        if self._replicas.is_elsewhere:
            return self.load_engine().arithmetic()
        return {**_arithmetic(self, self._replicas.device()), **self.spec.identity}

    def load_engine(self) -> ReplicaEngine:
        """Start the replicas and wait until they have read the weights."""
        return self._replicas.engine()


class ReplicatedModel(ModelFolder):
    """Model that runs in several processes; implements `interfaces.OpenModel`."""

    def __init__(
        self,
        engine_config: EngineConfig,
        tokenizer_folder: Path,
        chat_template: str | None,
        replicas: ReplicaConfig,
        stall_timeout_s: float,
    ) -> None:
        """stall_timeout_s: limit of an engine step in seconds, 0 for none."""
        super().__init__(engine_config, tokenizer_folder, chat_template)
        self._replicas = _Replicas(self.settings, tokenizer_folder, replicas, stall_timeout_s)

    def arithmetic(self) -> Mapping[str, object]:
        """Return the same; for other machines the replicas are asked."""
        if self._replicas.is_elsewhere:
            return self.load_engine().arithmetic()
        return _arithmetic(self, self._replicas.device())

    def load_engine(self) -> ReplicaEngine:
        """Start the replicas and wait until they have read the weights."""
        return self._replicas.engine()


class _Replicas:
    """Replicas of a model, started once.

    stall_timeout_s: limit of an engine step in seconds, 0 for none. params: of a task of texts.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer_folder: Path,
        replicas: ReplicaConfig,
        stall_timeout_s: float,
        params: PoolingParams | None = None,
    ) -> None:
        self.is_elsewhere = replicas.ray_address is not None  # on machines of their own
        self._config = config
        self._start = partial(
            start_replicas, config, tokenizer_folder, replicas, stall_timeout_s, params
        )
        self._engine: ReplicaEngine | None = None

    def device(self) -> Device:
        """Return the device of a replica on this machine."""
        config = self._config
        return choose_device(config.device, config.kernel_set, config.activations)

    def engine(self) -> ReplicaEngine:
        """Return the engine, once the replicas have read the weights."""
        if self._engine is None:
            self._engine = self._start()
            self._engine.warm_up()
        return self._engine
