"""A report file from anywhere: its figures, or one sentence."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.metrics.inspection import reported_states
from pagedrun.paged.metrics.saved_report import SavedReport
from pagedrun.paged.values.errors import UsageError

GOOD: dict[str, Any] = {
    "kv": {"num_blocks": 10, "block_size": 16, "bytes_per_token": 768, "peak_blocks": 9},
    "prefix": {"hits": 30, "misses": 10, "hit_tokens": 480, "evictions": None},
    "tokens": {"prompt": 960},
    "preemptions": {"swap": 1, "recompute": 2},
    "timeline": [
        {
            "t": 0.5,
            "step": 1,
            "blocks_used": 4,
            "blocks_shared": 1,
            "blocks_cached": 2,
            "tokens": 60,
        },
        {
            "t": 0.7,
            "step": 3,
            "blocks_used": 9,
            "blocks_shared": 0,
            "blocks_cached": 0,
            "tokens": 90,
        },
    ],
}


def written(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_figures_are_read_and_what_is_not_there_is_none(tmp_path: Path) -> None:
    report = SavedReport.read(written(tmp_path / "r.json", GOOD))
    assert (report.get("hits"), report.get("misses"), report.get("swap")) == (30, 10, 1)
    assert report.get("evictions") is None
    assert report.get("block_copies") is None
    assert [point["step"] for point in report.timeline] == [1, 3]
    with pytest.raises(KeyError):
        report.get("no such figure")


def test_states_are_those_of_the_report_or_none(tmp_path: Path) -> None:
    states = {"num_slots": 9, "bytes_per_slot": 100, "peak_slots": 7, "kept_states": 3}
    report = SavedReport.read(written(tmp_path / "r.json", {**GOOD, "states": states}))
    assert reported_states(report) == {
        **states,
        "pool_bytes": 900,
        "peak_bytes": 700,
        "found_states": 0,
    }
    without = SavedReport.read(written(tmp_path / "r.json", GOOD))
    assert reported_states(without) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"kv": []}',
        '{"kv": {}}',
        "[" * 100_000,
        '{"kv": {"num_blocks": -1}}',
        '{"kv": {"num_blocks": "many"}}',
        '{"kv": {"num_blocks": true}}',
        '{"kv": {"num_blocks": NaN}}',
        '{"kv": {"num_blocks": Infinity}}',
        '{"kv": {"num_blocks": 1e400}}',
        '{"kv": {"num_blocks": 1' + "0" * 400 + "}}",
        '{"kv": {"num_blocks": 1' + "0" * 5000 + "}}",
        '{"kv": KV, "prefix": 3}',
        '{"kv": KV, "timeline": {"a": 1}}',
        '{"kv": KV, "timeline": [1]}',
        '{"kv": KV, "timeline": [{}]}',
        json.dumps(GOOD | {"timeline": GOOD["timeline"][::-1]}),
        json.dumps(GOOD | {"kv": GOOD["kv"] | {"num_blocks": 8}}),
        json.dumps(GOOD | {"timeline": [GOOD["timeline"][0] | {"blocks_shared": 5}]}),
        '{"kv": {"num_blocks": "\ud800"}}',
    ],
    ids=range(24),
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    text = text.replace("KV", json.dumps(GOOD["kv"]))
    path.write_text(text, errors="surrogatepass")
    with pytest.raises(UsageError, match=r"r\.json is not a report"):
        SavedReport.read(path)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "absent"):
        with pytest.raises(UsageError):
            SavedReport.read(tmp_path / name)
