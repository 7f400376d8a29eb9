"""Engine of a replica: runs parts of plans that the driver made."""

import hashlib
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pagedrun._version import __version__
from pagedrun.kernels.environment.code_folder import private_folder
from pagedrun.paged.cache.prefix_store.folder import weights_digest
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.execution.pooling.pooling_engine import PooledRun, PoolingEngine
from pagedrun.paged.execution.pooling.text_windows import TextWindow
from pagedrun.paged.execution.run import Run
from pagedrun.paged.metrics.report_sections import Hardware
from pagedrun.paged.metrics.run_statistics import describe_hardware
from pagedrun.paged.metrics.timeline import RunHooks, StepRecord
from pagedrun.paged.models.checkpoint.checkpoint import open_checkpoint
from pagedrun.paged.models.model_config import describe_model
from pagedrun.paged.models.pooler_spec import PooledModelSpec
from pagedrun.paged.models.runnable_config import model_identity
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.planning.plan import PlanRules
from pagedrun.paged.planning.planner import RequestLimits
from pagedrun.paged.planning.sizing import PlanBasis
from pagedrun.paged.planning.windows import WindowQueue
from pagedrun.paged.replicas.replica_messages import VERSION, ReplicaOffer, RunTerms
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.pooling import PoolingParams


class LoadedPartEngine:
    """Implements `replica_worker.PartEngine`."""

    def __init__(self, engine: Engine, node: str, weights: str) -> None:
        """weights: digest of the model files."""
        self._engine = engine
        self._node = node
        self._weights = weights
        self._warnings: list[str] = []
        self._sizing = engine.sizing(engine.max_model_len)

    @classmethod
    def load(
        cls, config: EngineConfig, tokenizer_folder: Path, node: str, num_sharing: int
    ) -> "LoadedPartEngine":
        """Load the model and compile the kernels of a run.

        num_sharing: number of replicas that share the memory of this machine. Raises `ModelError`
        and `UsageError` as `LoadedModel.load` does.
        """
        shape = describe_model(config.model, config.model_impl)
        tokenizer = Tokenizer.from_folder(tokenizer_folder)
        loaded = LoadedModel.load(config, shape, tokenizer, num_sharing=num_sharing)
        loaded.finish_compiling()
        loaded.device.check(loaded.dtype)
        Engine(config, loaded).warm_up()
        if not loaded.device.has_own_memory and num_sharing > 1:
            budget = _share(MemoryBudget.of_host(taken=loaded.model.mapped_bytes), num_sharing)
            memory = PoolMemory(loaded.model, loaded.sampler, loaded.device, budget)
            loaded = replace(loaded, memory=memory)
        return cls(Engine(config, loaded), node, model_digest(config.model, tokenizer_folder))

    def offer(self) -> ReplicaOffer:
        """Return the offer of the replica."""
        engine, loaded = self._engine, self._engine.loaded
        hardware = describe_hardware(loaded.device.torch_device.type)
        formats = str([each.dtype for each in engine.kv_cache_specs])
        fingerprint = {
            **_fingerprint(loaded, hardware, self._weights),
            "format of keys and values": formats,
        }
        return ReplicaOffer(
            self._node,
            fingerprint,
            engine.basis(self._sizing),
            loaded.arithmetic,
            hardware,
            tuple(engine.notices()),
        )

    def start(
        self,
        feed: WindowQueue,
        terms: RunTerms,
        on_step: Callable[[StepRecord], None],
    ) -> Run:
        """Return the run of the units in the feed."""
        engine, left = self._engine, terms.seconds_left
        return engine.run(
            feed,
            self._sizing.sizes_for(terms.demand),
            reserved_len=terms.reserved_len,
            hooks=RunHooks(on_step, warn=self._warnings.append),
            ends_at=None if left is None else time.monotonic() + left,
        )


class PooledPartEngine:
    """Engine of texts; implements `replica_worker.PartEngine`."""

    def __init__(self, engine: PoolingEngine, node: str, weights: str) -> None:
        """weights: digest of the model files."""
        self._engine = engine
        self._node = node
        self._weights = weights

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        tokenizer_folder: Path,
        node: str,
        num_sharing: int,
        params: PoolingParams,
    ) -> "PooledPartEngine":
        """Load the model and compile the kernels of a run; see `LoadedPartEngine.load`."""
        tokenizer = Tokenizer.from_folder(tokenizer_folder)
        spec = PooledModelSpec.read(config.model, params)
        spec = replace(spec, config=spec.config.held_as(config.quantization, config.model))
        spec = spec.with_answers(tokenizer.encode_batch(["no", "yes"], False))
        loaded = LoadedModel.load(config, spec.config, tokenizer, num_sharing=num_sharing)
        loaded.device.check(loaded.dtype)
        engine = PoolingEngine.load(config, loaded, spec)
        engine.warm_up()
        return cls(engine, node, model_digest(config.model, tokenizer_folder))

    def offer(self) -> ReplicaOffer:
        """Return the offer of the replica."""
        engine, loaded = self._engine, self._engine.loaded
        hardware = describe_hardware(loaded.device.torch_device.type)
        config, spec = engine.config, engine.spec
        # Texts have no blocks in a plan of the driver; a text leaves no room for a token.
        rules = PlanRules(
            config.block_size, config.prefix_caching, sys.maxsize, loaded.device.read_once
        )
        limits = RequestLimits(spec.max_length + 1, loaded.config.vocab_size)
        return ReplicaOffer(
            self._node,
            {**_fingerprint(loaded, hardware, self._weights), **spec.identity},
            PlanBasis(limits, rules),
            {**loaded.arithmetic, **spec.identity},
            hardware,
        )

    def start(
        self,
        feed: WindowQueue,
        terms: RunTerms,
        on_step: Callable[[StepRecord], None],
    ) -> PooledRun:
        """Return the run of the units in the feed."""
        left = terms.seconds_left
        return self._engine.run(
            (TextWindow.of([each.request for each in window.plan]) for window in feed),
            None if left is None else time.monotonic() + left,
            RunHooks(on_step),
        )


def _fingerprint(loaded: LoadedModel, hardware: Hardware, weights: str) -> dict[str, str]:
    """Return what must be equal in all replicas; weights: digest of the model files."""
    versions = {f"version of {name}": str(each) for name, each in hardware["versions"].items()}
    return {
        VERSION: __version__,
        **{name: each for name, each in versions.items() if "pagedrun" not in name},
        "version of Python": ".".join(platform.python_version_tuple()[:2]),
        "weights": weights,
        **model_identity(loaded.config),
        "number format": loaded.dtype_name,
        "threads": str(hardware["threads"]),
        **{name: str(each) for name, each in loaded.machine.items()},
    }


def _share(budget: MemoryBudget, num_sharing: int) -> MemoryBudget:
    """Return the part of a memory budget for one of several replicas."""
    return replace(
        budget, available=budget.available // num_sharing, pool=budget.pool // num_sharing
    )


_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def model_digest(folder: Path, tokenizer: Path) -> str:
    """Return the SHA-256 of weights and tokenizer, names and contents, as hex.

    Digests of large files are cached in the user's cache folder. Raises `OSError` for a file that
    cannot be read.
    """
    with open_checkpoint(folder) as checkpoint:
        files = checkpoint.files
    memory = private_folder("digests")
    if memory is not None:
        digest = hashlib.sha256(weights_digest(memory, files).encode())
    else:
        with tempfile.TemporaryDirectory() as forgotten:
            digest = hashlib.sha256(weights_digest(Path(forgotten), files).encode())
    for name in _TOKENIZER:
        path = tokenizer / name
        if path.is_file():
            digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()
