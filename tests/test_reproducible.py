"""The promise: one file gives the same bytes, whatever the batch, pool, chunk or preemption."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.read_once import ReadOnce
from pagedrun.paged.engine_config import EngineConfig
from pagedrun.paged.foresight import Foresight
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.kv_cache import KVLayout

MAX_LEN = 640


class MakeModel(Protocol):
    def __call__(self, family: str, name: str, **config_overrides: Any) -> Path: ...


@pytest.fixture(scope="module", autouse=True)
def short_prefixes_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelSet, "read_once", ReadOnce(16, 1))
        yield


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    """A model whose two layers see differently far, so that windows are in the promise too."""
    return make_model(
        "qwen3",
        "reproducible",
        dtype="bfloat16",
        num_hidden_layers=3,
        use_sliding_window=True,
        sliding_window=150,
        max_window_layers=2,
        max_position_embeddings=MAX_LEN,
    )


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in nested groups, alone, and twice; greedy and sampled, some with several samples.

    The prefixes are long enough to be read once for all rows: two and three partitions of them.
    """
    rng = random.Random(7)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(256) for _ in range(count)]

    company, task = tokens(270), tokens(150)
    prompts = [company + tokens(rng.randrange(1, 60)) for _ in range(5)]
    prompts += [company + task + tokens(rng.randrange(1, 60)) for _ in range(16)]
    prompts += [tokens(rng.randrange(1, 300)) for _ in range(9)]
    prompts += [company[:128], company[:128], company + task, company[:16], [5]]
    rng.shuffle(prompts)
    sampled = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.01}
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    with path.open("w") as file:
        for index, prompt in enumerate(prompts):
            row: dict[str, Any] = {"prompt_token_ids": prompt, "max_tokens": 10 + index}
            if index % 2:
                row |= sampled | {"seed": index, "n": 1 + index % 3}
            file.write(json.dumps(row) + "\n")
    return path


def answers(rows: Path, folder: Path, tmp_path: Path, **engine: Any) -> tuple[str, dict[str, Any]]:
    """Run the job and return its rows, `cached_tokens` struck out, with the report."""
    output = tmp_path / "out.jsonl"
    config = JobConfig(
        input=str(rows),
        output=str(output),
        engine=EngineConfig(model=folder, **engine),
        ordered=True,
        overwrite=True,
    )
    report = run_job(config).report
    assert report["rows"]["ok"] == report["rows"]["total"] > 30
    lines = []
    for line in output.read_text().splitlines():
        row = json.loads(line)
        del row["usage"]["cached_tokens"]
        lines.append(json.dumps(row))
    return "\n".join(lines), report


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def undisturbed(
    request: pytest.FixtureRequest,
    rows: Path,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, str]:
    dtype = request.param
    text, _ = answers(rows, folder, tmp_path_factory.mktemp("undisturbed"), dtype=dtype)
    return dtype, text


SMALLEST_POOL = -(-MAX_LEN // 16)
VARIATIONS: dict[str, dict[str, Any]] = {
    "one-at-a-time": {"max_num_seqs": 1},
    "three-at-a-time": {"max_num_seqs": 3},
    "sixteen-at-a-time": {"max_num_seqs": 16},
    "sixty-four-at-a-time": {"max_num_seqs": 64},
    "odd-chunks": {"max_num_batched_tokens": 37},
    "tiny-chunks": {"max_num_batched_tokens": 5, "max_num_seqs": 4},
    "no-prefix-caching": {"prefix_caching": False},
    "no-prefix-once": {"prefix_once": False},
    "neither": {"prefix_caching": False, "prefix_once": False, "max_num_seqs": 5},
    "small-pool": {"num_blocks": SMALLEST_POOL + 20},
    "preempted-by-swap": {"num_blocks": SMALLEST_POOL, "preemption_mode": "swap"},
    "preempted-by-recompute": {"num_blocks": SMALLEST_POOL, "preemption_mode": "recompute"},
    "preempted-without-room-to-swap": {"num_blocks": SMALLEST_POOL, "swap_space_bytes": 8192},
    "preempted-uncached-odd-chunks": {
        "num_blocks": SMALLEST_POOL,
        "preemption_mode": "recompute",
        "prefix_caching": False,
        "max_num_batched_tokens": 41,
    },
    "larger-blocks": {"block_size": 64},
    "blocks-of-odd-size": {"block_size": 13},
}


@pytest.mark.parametrize("variation", VARIATIONS)
def test_same_bytes(
    variation: str,
    undisturbed: tuple[str, str],
    rows: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dtype, expected = undisturbed
    if variation.startswith("preempted"):  # let in whoever fits, so that somebody must give way
        monkeypatch.setattr(Foresight, "allows", lambda *_: True)
    text, report = answers(rows, folder, tmp_path, dtype=dtype, **VARIATIONS[variation])
    assert text == expected
    if variation.startswith("preempted"):
        assert sum(report["preemptions"].values()) > 0
    read, alone = (
        report["prefix"][f"attention_bytes_{each}"] for each in ("read", "without_sharing")
    )
    assert (read < alone) == (variation not in ("no-prefix-once", "neither", "one-at-a-time"))


def test_a_pool_poisoned_with_nan_changes_nothing(
    undisturbed: tuple[str, str],
    rows: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a slot held before it was written must never reach a result: 0 · NaN is NaN."""
    allocate = KVLayout.allocate

    def poisoned(self: KVLayout, *given: Any, **more: Any) -> torch.Tensor:
        return allocate(self, *given, **more).fill_(torch.nan)

    monkeypatch.setattr(KVLayout, "allocate", poisoned)
    dtype, expected = undisturbed
    text, _ = answers(rows, folder, tmp_path, dtype=dtype, num_blocks=200)
    assert text == expected


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_same_bytes_at_the_width_of_a_real_model(
    dtype: str, make_model: MakeModel, rows: Path, tmp_path: Path
) -> None:
    """Matrix libraries pick other kernels for a single row only where rows are long."""
    folder = make_model(
        "qwen3",
        "wide",
        dtype="bfloat16",
        num_hidden_layers=1,
        hidden_size=1024,
        intermediate_size=3072,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=MAX_LEN,
        initializer_range=0.05,
    )
    expected, _ = answers(rows, folder, tmp_path, dtype=dtype)
    alone, _ = answers(rows, folder, tmp_path, dtype=dtype, max_num_seqs=1)
    assert alone == expected
    cut, _ = answers(rows, folder, tmp_path, dtype=dtype, max_num_seqs=3, max_num_batched_tokens=29)
    assert cut == expected
