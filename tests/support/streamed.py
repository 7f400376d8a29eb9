"""Engines whose weights are streamed."""

from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.models.streaming.packed_folder import PackedEntry, read_entry
from pagedrun.paged.models.streaming.residency import Residency, StreamedWeights
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from tests.support.engines import load_engine


def streaming(
    config: EngineConfig, packed: Path, share: float = 0.0, tokenizer_folder: Path | None = None
) -> Engine:
    """Return an engine that pins about `share` of the weights beside the least ring.

    packed: a folder of its own, in which the weights are packed first. tokenizer_folder: see
    `load_engine`.
    """
    config = replace(config, packed_dir=packed)
    if not packed.exists():
        with pytest.raises(UsageError, match="needs at least") as caught:
            load_engine(replace(config, weights_memory=1), tokenizer_folder=tokenizer_folder)
        assert caught.value.field == "weights_memory"
    sizes = [each.num_bytes for each in packed_entries(packed)]
    memory = Residency.least_bytes(sizes) + int(share * sum(sizes))
    config = replace(config, weights_memory=memory)
    engine = load_engine(config, tokenizer_folder=tokenizer_folder)
    assert streamed_by(engine).residency.num_streamed > 0
    return engine


def streamed_by(engine: Engine) -> StreamedWeights:
    """Return the streamed weights of an engine that has some."""
    streamed = engine.loaded.model.streamed
    assert streamed is not None
    return streamed


def packed_entries(packed: Path) -> list[PackedEntry]:
    """Return the entries of the only model in a folder, in the order of a pass."""
    [folder] = packed.iterdir()
    paths = sorted(folder.glob("*.packed"), key=lambda path: (path.stem == "head", path.stem))
    return [read_entry(path) for path in paths]
