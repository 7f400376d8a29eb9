"""Preempted sequences in a file: the bytes of those in memory, and a disk that has no room."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from pagedrun.paged.cache.swap_memory import on_disk
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.run import RunPolicy
from pagedrun.paged.values.engine_config import EngineConfig, PreemptionMode
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.drive import OneBlockEach
from tests.support.engines import load_engine
from tests.support.families import RECURRENT, TINY, save_tiny

FAMILIES = {"smollm3": TINY["smollm3"], "qwen3_next": RECURRENT["qwen3_next"]}


def answers(engine: Engine) -> list[Any]:
    params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, seed=4)
    requests = [Request(index, tuple(range(index, index + 9)), params) for index in range(8)]
    run = engine.start(requests)
    done = sorted(run, key=lambda each: each.request.index)
    assert run.scheduler.counts.preemptions[PreemptionMode.SWAP] > 0
    return [each.outputs for each in done]


@pytest.mark.invariant("same bytes swapped to a disk")
@pytest.mark.parametrize(
    ("family", "dtype", "cache_dtype"),
    [
        ("smollm3", "bfloat16", "int8"),
        ("qwen3_next", "float32", "auto"),
        pytest.param("smollm3", "float32", "auto", marks=pytest.mark.long),
        pytest.param("qwen3_next", "bfloat16", "int8", marks=pytest.mark.long),
    ],
)
def test_the_bytes_are_those_of_memory(
    family: str, dtype: str, cache_dtype: str, tmp_path: Path
) -> None:
    save_tiny(FAMILIES[family], tmp_path / "model", torch.float32)
    swap = tmp_path / "swap"
    swap.mkdir()

    def engine(**flags: Any) -> Engine:
        config = EngineConfig.fitting(
            model=tmp_path / "model",
            device="cpu",
            dtype=dtype,
            num_blocks=12,
            kv_cache_dtype=cache_dtype,
            **flags,
        )
        return load_engine(config, RunPolicy(new_predictor=OneBlockEach))

    assert answers(engine(swap_dir=swap)) == answers(engine())
    assert not list(swap.iterdir()), "the file has no name"


def test_room_is_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UsageError, match="cannot hold a file of 400 bytes") as caught:
        on_disk(tmp_path)((10, 10), torch.float32)
    assert caught.value.field == "swap_dir"


def test_a_folder_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory"):
        on_disk(tmp_path / "missing")((10, 10), torch.float32)


def test_no_blocks_need_no_file(tmp_path: Path) -> None:
    assert on_disk(tmp_path / "missing")((0, 10), torch.float32).shape == (0, 10)
