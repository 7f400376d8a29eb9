"""What rows share, as `show` says it, and the blocks of replicas that a plan is for."""

from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.kernels.partition import ON_GPU
from pagedrun.paged.execution.device_facts import DeviceFacts, DeviceMemory
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.planned.plan_file import plan_file
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.job.shown_row import show_row
from pagedrun.paged.values.engine_config import EngineConfig
from tests.conftest import MakeModel
from tests.support.jsonl import write_jsonl
from tests.support.plan_jobs import job

GPU = DeviceFacts(ON_GPU, memory=DeviceMemory(total=60_000_000, free=59_000_000))
SHARED = list(range(3, 103))


@pytest.fixture
def asked(make_model: MakeModel, tmp_path: Path) -> JobConfig:
    """Rows that share 100 tokens, half of them with an end of their own after 40."""
    prompts = [[*SHARED[: 40 if row % 2 else 100], 150 + row] for row in range(6)]
    path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt_token_ids": each} for each in prompts])
    return job(path, make_model("qwen3", "shown"))


def with_settings(config: JobConfig, **given: int) -> JobConfig:
    """Return it with nothing given but these."""
    engine = EngineConfig.fitting(model=config.engine.model, device="cpu", **given)
    return replace(config, engine=engine)


@pytest.mark.parametrize("block_size", [1, 16, 64, 256])
def test_what_rows_share_is_told_to_the_token(asked: JobConfig, block_size: int) -> None:
    """Whatever the blocks are: a run on a GPU fits them, and `show` looks for none."""
    found = show_row(with_settings(asked, block_size=block_size), JobListener(), index=2)
    assert [(part.tokens, part.rows) for part in found.row.shared] == [(40, 6), (100, 3)]


def test_a_plan_for_replicas_has_the_blocks_of_their_devices(asked: JobConfig) -> None:
    def planned(**given: int) -> object:
        config = with_settings(asked, **given)
        return plan_file(config, JobListener(), device=GPU, num_replicas=2)["replicas"]

    assert planned() == planned(block_size=64) != planned(block_size=16)
