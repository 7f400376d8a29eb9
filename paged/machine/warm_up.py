"""Compilation of a model's kernels ahead of its runs, for `pagedrun warmup`."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from pagedrun.paged.execution.device_facts import probe_device
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.job.planned.planned_weights import PlannedWeights
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.machine.examination import CacheFacts, code_caches
from pagedrun.paged.models.checkpoint.header import CheckpointHeader
from pagedrun.paged.models.model_config import describe_model
from pagedrun.paged.values.engine_config import AUTO, EngineConfig
from pagedrun.paged.values.errors import UsageError


class PackedFacts(TypedDict):
    """Folder and bytes of packed weights, and the measured speeds of a pass."""

    path: str
    bytes: int
    bytes_per_s: float
    tokens_per_s: float | None


class WarmUp(TypedDict):
    """`packed`: folder of the packed weights, None if all weights are in memory. `compile_s`:
    seconds in which kernels of all `dtypes` were compiled or read. `new_files`: files added to the
    `caches` of compiled code."""

    model: str
    device: str
    dtypes: list[str]
    load_s: float
    compile_s: float
    new_files: int
    packed: PackedFacts | None
    caches: list[CacheFacts]


def warm_up(
    configs: Sequence[EngineConfig],
    tokenizer: Path | None,
    listener: JobListener,
    *,
    packs: bool = False,
) -> WarmUp:
    """Load the model of each configuration and run a few tokens, so that its kernels are compiled.

    `configs`: at least one, that differ in their dtype only. `tokenizer`: a folder, None for that
    of the model. `packs`: weights are packed as for streaming, even if they fit in memory. Raises
    `ModelError` if a model cannot be used, `UsageError` if the device cannot.
    """
    before = _num_files(code_caches())
    load_s = compile_s = 0.0
    dtypes, device = [], ""
    packed: PackedFacts | None = None
    for config in configs:
        began = time.perf_counter()
        listener.on_phase(Phase.LOAD)
        if packs:
            config = _packing(config)
        engine = LocalModel(config, tokenizer or config.model, None).load_engine()
        loaded = time.perf_counter()
        engine.warm_up(lambda: listener.on_phase(Phase.COMPILE))
        load_s += loaded - began
        compile_s += time.perf_counter() - loaded
        dtypes.append(str(engine.loaded.dtype).removeprefix("torch."))
        device = engine.loaded.device.torch_device.type
        streamed = engine.loaded.model.streamed
        if streamed is not None:
            packed = {
                "path": str(streamed.folder),
                "bytes": sum(streamed.residency.sizes),
                "bytes_per_s": streamed.speeds.bytes_per_s,
                "tokens_per_s": streamed.speeds.tokens_per_s,
            }
    caches = code_caches()
    return {
        "model": str(configs[0].model),
        "device": device,
        "dtypes": dtypes,
        "load_s": load_s,
        "compile_s": compile_s,
        "new_files": _num_files(caches) - before,
        "packed": packed,
        "caches": caches,
    }


def _packing(config: EngineConfig) -> EngineConfig:
    """Return a configuration that streams a model's weights, and so packs all of them.

    Raises `UsageError` for a model, or a device, whose weights are all in memory.
    """
    device = probe_device(config.device, config.kernel_set, config.activations)
    model = describe_model(config.model, config.model_impl).held_as(
        config.quantization, config.model
    )
    dtype = device.dtypes.of_model(config.dtype, model.dtype, by_torch=model.by_torch)
    weights = PlannedWeights(model, CheckpointHeader.read(config.model), dtype, device)
    if not weights.packed_bytes:
        raise UsageError(
            "--pack: weights are read during a run on a CPU only, by pagedrun's own models; leave "
            "it out"
        )
    if config.weights_memory != AUTO:
        return config
    return replace(config, weights_memory=weights.packed_bytes - 1)


def _num_files(caches: list[CacheFacts]) -> int:
    return sum(each["files"] for each in caches)
