"""Jobs and rows for tests of plans."""

import random
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.sampling_params import SamplingParams

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "no window": ("mistral", {"sliding_window": None}),
    "windows": ("mistral", {"sliding_window": 50}),
    "windows larger than any context": ("mistral", {"sliding_window": 4096}),
    "both": (
        "qwen2",
        {
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 50,
            "max_window_layers": 2,
        },
    ),
}


def generated_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of nested prefixes, some of them alike or with several samples, of many lengths."""
    draw = random.Random(seed)

    def text(low: int, high: int) -> str:
        return "".join(draw.choices("abcdefgh ", k=draw.randint(low, high)))

    company = text(60, 60)
    tasks = [company + text(20, 90) for _ in range(9)]
    rows: list[dict[str, Any]] = []
    for _ in range(count):
        task = tasks[min(int(draw.paretovariate(0.7)) - 1, 8)]
        row: dict[str, Any] = {"prompt": task + text(0, 60), "max_tokens": draw.randint(1, 40)}
        kind = draw.random()
        if kind < 0.05:
            row |= {"n": 3, "temperature": 1.0, "max_tokens": draw.randint(2, 20)}
        elif kind < 0.1:
            row["n"] = 2
        elif kind < 0.2 and rows:
            row = dict(draw.choice(rows))
        elif kind < 0.22:
            row["prompt"] = "x" * 600  # more than the model can hold
        rows.append(row)
    return rows


def job(path: Path, model: Path, **flags: Any) -> JobConfig:
    engine = EngineConfig(
        model=model,
        max_num_seqs=24,
        max_num_batched_tokens=256,
        dtype="float32",
        speculate="off",  # a plan counts the steps of rows without drafts
    )
    changes = {name: flags.pop(name) for name in list(flags) if hasattr(engine, name)}
    return JobConfig(
        input=str(path),
        output=str(path.with_suffix(".out")),
        engine=EngineConfig(
            **{name: getattr(engine, name) for name in engine.__dataclass_fields__} | changes
        ),
        **{"sampling": PARAMS, "overwrite": True, **flags},
    )


def assert_told(forecast: Any, report: Any) -> None:
    """What both name, both say the same of."""
    for name in ("prompt", "cached", "computed", "generated", "preempted_recomputed"):
        assert forecast["tokens"][name] == report["tokens"][name], name
    for name, value in report["kv"].items():
        if name == "groups":
            assert forecast["kv"][name] == value
        elif name not in ("mean_use_when_short", "short_of_blocks"):
            assert forecast["kv"][name] == pytest.approx(value), name
    assert forecast["preemptions"] == report["preemptions"]
    assert forecast["prefix"]["hit_rate"] == report["prefix"]["hit_rate"]
    assert forecast["prefix"]["achievable_hit_rate"] == report["prefix"]["achievable_hit_rate"]
    for name in ("attention_bytes_read", "attention_bytes_without_sharing"):
        assert forecast["prefix"][name] == report["prefix"][name], name
    assert forecast["rows"]["total"] == report["rows"]["total"]
    assert sum(forecast["rows"]["refused"].values()) == report["rows"]["failed"]
    if "kv_cache_too_small" not in forecast["rows"]["refused"]:
        assert forecast["rows"]["duplicates"] == report["prefix"]["duplicate_rows"]
