"""`pagedrun warmup`: which engines are loaded and compiled, and what is said of them."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.machine.warm_up import warm_up
from pagedrun.paged.values.engine_config import EngineConfig


def test_the_kernels_of_each_dtype_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    class Model:
        def __init__(self, config: EngineConfig, tokenizer: Path, template: None) -> None:
            self._dtype = config.dtype

        def load_engine(self) -> SimpleNamespace:
            def run(on_compile: Callable[[], None]) -> None:
                compiled.append(self._dtype)

            device = SimpleNamespace(torch_device=torch.device("cpu"))
            loaded = SimpleNamespace(
                dtype=getattr(torch, self._dtype),
                device=device,
                model=SimpleNamespace(streamed=None),
            )
            return SimpleNamespace(warm_up=run, loaded=loaded)

    monkeypatch.setattr("pagedrun.paged.machine.warm_up.LocalModel", Model)
    asked = ["float32", "bfloat16"]
    configs = [EngineConfig.fitting(model=Path("model"), dtype=dtype) for dtype in asked]
    found = warm_up(configs, None, JobListener())
    assert compiled == found["dtypes"] == asked
    assert found["packed"] is None
