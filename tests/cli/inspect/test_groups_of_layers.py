"""Groups of layers as a user meets them: in `inspect-cache`, on its page and in the report."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pagedrun.cli.report.report import draw_report
from pagedrun.cli.report.report_figures import group_name
from tests.cli.finished_run import REPORT, beside
from tests.cli.inspect.conftest import InspectCache
from tests.cli.report.full_report import REPORT as WHOLE_REPORT
from tests.support.grouped_run import GroupedRun

FULL = {
    "num_layers": 1,
    "window": None,
    "num_blocks": 60,
    "bytes_per_token": 8,
    "pool_bytes": 1920,
    "peak_blocks": 37,
    "peak_bytes": 1184,
}
WINDOWED = {
    "num_layers": 5,
    "window": 9,
    "num_blocks": 24,
    "bytes_per_token": 40,
    "pool_bytes": 3840,
    "peak_blocks": 20,
    "peak_bytes": 3200,
}


@pytest.fixture
def grouped(output: Path) -> Path:
    """The files of a run of a model with two groups."""
    kv = {"block_size": 4, "num_blocks": 60, "bytes_per_token": 48, "groups": [FULL, WINDOWED]}
    beside(output, ".report.json").write_text(json.dumps({**REPORT, "kv": kv}))
    beside(output, ".snapshot.npz").write_bytes(GroupedRun().snapshot().to_bytes())
    return output


def words(text: str) -> str:
    return " ".join(text.split())


def test_pools_and_tables_of_each_group(run: InspectCache, grouped: Path) -> None:
    status, out, err = run(grouped, "--row", "0", "--json")
    assert status == 0
    told = words(err)
    assert "full attention, 1 layer 60 blocks, 1.9 KiB; at peak" in told
    assert "window 9, 5 layers 24 blocks, 3.8 KiB; at peak" in told
    assert "the first group of layers, which keeps whole sequences" in told
    found = json.loads(out)
    [table] = found["rows"][0]["group_tables"]
    held = [each["logical"] for each in table["blocks"]]
    assert (
        f"window 9, 5 layers, sample 0: {len(held)} blocks, {held[0]} to {held[-1]} of the row"
        in told
    )
    assert f"{held[0]} → {table['blocks'][0]['physical']} P ×1 4/4" in told


def test_without_a_snapshot_the_report_tells(run: InspectCache, grouped: Path) -> None:
    beside(grouped, ".snapshot.npz").unlink()
    status, _, err = run(grouped)
    assert status == 0
    assert "window 9, 5 layers 24 blocks, 3.8 KiB; at peak 20 in use, 3.1 KiB" in words(err)


@pytest.mark.parametrize("suffix", [".snapshot.npz", ".report.json"])
def test_the_page_lists_them(run: InspectCache, grouped: Path, tmp_path: Path, suffix: str) -> None:
    """From whichever file is there."""
    beside(grouped, suffix).unlink()
    page = tmp_path / "page.html"
    assert run(grouped, "--html", page)[0] == 0
    html = page.read_text()
    assert "<h2>Groups of layers</h2>" in html
    assert '<td class="words">window 9, 5 layers</td><td>24</td><td>3.8 KiB</td>' in html


def test_a_page_of_one_group_has_no_list(run: InspectCache, output: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(output, "--html", page)[0] == 0
    assert "Groups of layers" not in page.read_text()


def test_the_report_has_a_line_for_each() -> None:
    report: Any = {**WHOLE_REPORT, "kv": {**WHOLE_REPORT["kv"], "groups": [FULL, WINDOWED]}}
    stream = io.StringIO()
    draw_report(report, Console(file=stream, width=80))
    told = words(stream.getvalue())
    assert "window 9, 5 layers 24 blocks, 3.8 KiB; at peak 20 in use, 3.1 KiB" in told
    assert "of 16 tokens, in 2 groups of layers; the first:" in told


def test_names() -> None:
    assert group_name(24, None) == "full attention, 24 layers"
    assert group_name(1, 1024) == "window 1,024, 1 layer"
    assert group_name(0, None) == "no layers, only names"
