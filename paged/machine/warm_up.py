"""Compilation of a model's kernels ahead of its runs, for `pagedrun warmup`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.machine.examination import CacheFacts, code_caches
from pagedrun.paged.values.engine_config import EngineConfig


class WarmUp(TypedDict):
    """`compile_s`: seconds in which kernels of all `dtypes` were compiled or read. `new_files`:
    files added to the `caches` of compiled code."""

    model: str
    device: str
    dtypes: list[str]
    load_s: float
    compile_s: float
    new_files: int
    caches: list[CacheFacts]


def warm_up(
    configs: Sequence[EngineConfig], tokenizer: Path | None, listener: JobListener
) -> WarmUp:
    """Load the model of each configuration and run a few tokens, so that its kernels are compiled.

    `configs`: at least one, that differ in their dtype only. `tokenizer`: a folder, None for that
    of the model. Raises `ModelError` if a model cannot be used, `UsageError` if the device cannot.
    """
    before = _num_files(code_caches())
    load_s = compile_s = 0.0
    dtypes, device = [], ""
    for config in configs:
        began = time.perf_counter()
        listener.on_phase(Phase.LOAD)
        engine = LocalModel(config, tokenizer or config.model, None).load_engine()
        loaded = time.perf_counter()
        engine.warm_up(lambda: listener.on_phase(Phase.COMPILE))
        load_s += loaded - began
        compile_s += time.perf_counter() - loaded
        dtypes.append(str(engine.loaded.dtype).removeprefix("torch."))
        device = engine.loaded.device.torch_device.type
    caches = code_caches()
    return {
        "model": str(configs[0].model),
        "device": device,
        "dtypes": dtypes,
        "load_s": load_s,
        "compile_s": compile_s,
        "new_files": _num_files(caches) - before,
        "caches": caches,
    }


def _num_files(caches: list[CacheFacts]) -> int:
    return sum(each["files"] for each in caches)
