"""Models of a job, in this process or in replicas, opened before their weights are read."""

from collections.abc import Mapping
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
        self._params = params
        self._tokenizer_folder = tokenizer_folder
        self._replicas = replicas
        self._stall_timeout_s = stall_timeout_s
        self._engine: ReplicaEngine | None = None

    def arithmetic(self) -> Mapping[str, object]:
        """Return the same; for other machines the replicas are asked."""
        if self._replicas.ray_address is not None:
            return self.load_engine().arithmetic()
        config = self.settings
        device = choose_device(config.device, config.kernel_set, config.activations)
        return {**_arithmetic(self, device), **self.spec.identity}

    def load_engine(self) -> ReplicaEngine:
        """Start the replicas and wait until they have read the weights."""
        if self._engine is None:
            self._engine = start_replicas(
                self.settings,
                self._tokenizer_folder,
                self._replicas,
                self._stall_timeout_s,
                self._params,
            )
            self._engine.warm_up()
        return self._engine


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
        self._tokenizer_folder = tokenizer_folder
        self._replicas = replicas
        self._stall_timeout_s = stall_timeout_s
        self._engine: ReplicaEngine | None = None

    def arithmetic(self) -> Mapping[str, object]:
        """Return the same; for other machines the replicas are asked."""
        if self._replicas.ray_address is not None:
            return self.load_engine().arithmetic()
        config = self.settings
        return _arithmetic(
            self, choose_device(config.device, config.kernel_set, config.activations)
        )

    def load_engine(self) -> ReplicaEngine:
        """Start the replicas and wait until they have read the weights."""
        if self._engine is None:
            self._engine = start_replicas(
                self.settings, self._tokenizer_folder, self._replicas, self._stall_timeout_s
            )
            self._engine.warm_up()
        return self._engine
