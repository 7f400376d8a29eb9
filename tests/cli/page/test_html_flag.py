"""`--html` as a user meets it: what is refused before anything begins, and what is written."""

import base64
import json
import os
import re
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.metrics.snapshot_file import read_snapshot
from pagedrun.recipes.demo import demo_model_folder
from tests.cli.finished_run import beside, leave_run, snapshot
from tests.support.command import Command, run_command
from tests.support.jsonl import write_jsonl


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """Run `pagedrun ARGS` in an empty folder with two rows; return status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"Wistaria-{each}", "prompt": f"Marigold {each}?"} for each in range(2)]
    write_jsonl(Path("rows.jsonl"), rows)
    return partial(run_command, capfd)


def left() -> Path:
    folder = Path("left")
    folder.mkdir()
    return leave_run(folder)


def data_of(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text())
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_generate_writes_the_page_of_its_run(run: Command) -> None:
    status, _, err = run(
        "generate", "rows.jsonl", "--model", "demo", "--max-tokens", "4", "--html", "page.html"
    )
    assert status == 0, err
    assert "page → page.html" in err
    page = Path("page.html")
    data = data_of(page)
    kept = read_snapshot(Path("rows.out.jsonl.snapshot.npz"))
    report = json.loads(Path("rows.out.jsonl.report.json").read_text())
    assert data["timeline"]["blocks_used"] == [each["blocks_used"] for each in report["timeline"]]
    assert data["map"]["steps"] == kept.samples.steps.tolist()
    packed = zlib.decompress(base64.b64decode(data["map"]["refCounts"]["bytes"]))
    differences = np.frombuffer(packed, np.uint16).reshape(kept.samples.ref_counts.shape)
    counts = np.cumsum(differences, axis=0, dtype=np.uint16)
    assert (counts == kept.samples.ref_counts).all()
    text = page.read_text()
    assert "rows.out.jsonl" in text
    assert "Wistaria" not in text
    assert "Marigold" not in text

    again = (
        "generate",
        "rows.jsonl",
        "--model",
        "demo",
        "--max-tokens",
        "4",
        "--html",
        "page.html",
    )
    status, _, err = run(*again, "-o", "other.jsonl")
    assert (status, Path("other.jsonl").exists()) == (2, False)
    assert "--html page.html exists; pass --overwrite or name another file" in err
    status, out, _ = run(*again, "--overwrite", "--quiet", "-o", "-")
    assert status == 0
    assert len(out.splitlines()) == 2
    assert "<h1>rows</h1>" in page.read_text()
    assert data_of(page)["map"]["steps"] == kept.samples.steps.tolist()


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("rows.jsonl", "--html rows.jsonl is the input itself; name another file"),
        ("rows.out.jsonl", "--html rows.out.jsonl is the output itself"),
        ("./x/../rows.out.jsonl.report.json", "is the report itself"),
        ("rows.out.jsonl.run.json", "is the manifest itself"),
        ("rows.out.jsonl.snapshot.npz", "is the snapshot itself"),
        ("x", "--html x: name a file in an existing folder"),
        ("no/page.html", "--html no/page.html: name a file in an existing folder"),
        ("pipe", "--html pipe is not a regular file; name another one"),
        ("shut/page.html", "--html shut/page.html: the folder shut cannot be written to"),
    ],
)
def test_a_page_that_cannot_be_is_refused_before_the_run(
    run: Command, monkeypatch: pytest.MonkeyPatch, target: str, sentence: str
) -> None:
    Path("x").mkdir()
    Path("shut").mkdir()
    os.mkfifo("pipe")
    access = os.access  # root may write anywhere
    monkeypatch.setattr(
        "os.access", lambda path, mode: Path(path).name != "shut" and access(path, mode)
    )
    before = Path("rows.jsonl").read_bytes()
    for overwrite in ([], ["--overwrite"]):
        status, out, err = run(
            "generate", "rows.jsonl", "--model", "demo", "--html", target, *overwrite
        )
        assert (status, out) == (2, "")
        assert sentence in err
        assert "Traceback" not in err
    assert Path("rows.jsonl").read_bytes() == before
    assert sorted(each.name for each in Path().iterdir()) == ["pipe", "rows.jsonl", "shut", "x"]


def test_bench_memory_writes_a_page(run: Command) -> None:
    sizes = "--requests 4,20 --mean 40 --std 20 --min-len 8 --max-len 128 --shared 20"
    bench = ["bench", "memory", *sizes.split(), "--model", str(demo_model_folder()), "--quiet"]
    status, out, _ = run(*bench, "--json", "--html", "m.html")
    assert status == 0
    result = json.loads(out)
    data = data_of(Path("m.html"))
    assert data == {name: result[name] for name in data}
    assert {"at_once", "sharing", "over_time", "block_sizes"} <= set(data)
    status, _, err = run("bench", "memory", "--html", "no/m.html")
    assert status == 2
    assert "--html no/m.html: name a file in an existing folder" in err
    before = Path("m.html").stat().st_ino
    assert run(*bench, "--html", "m.html")[0] == 0  # a page is replaced
    assert Path("m.html").stat().st_ino != before
    status, _, err = run("bench", "memory", "--html", "rows.jsonl")
    assert status == 2
    assert "--html rows.jsonl exists and is not a page of pagedrun; name another file" in err
    status, _, err = run("bench", "memory", "--html", "m.json", "--save", "m.json")
    assert (status, Path("m.json").exists()) == (2, False)
    assert "--html m.json is the --save file itself" in err


def test_inspect_cache_writes_the_page_of_a_run_that_is_over(run: Command) -> None:
    output = left()
    status, out, err = run("inspect-cache", str(output), "--html", "page.html", "--quiet")
    assert (status, out, err) == (0, "", "")
    data = data_of(Path("page.html"))
    assert data["map"]["steps"] == snapshot().samples.steps.tolist()
    assert data["timeline"]["blocks_used"] == [5]
    text = Path("page.html").read_text()
    assert "<h1>rows.out.jsonl</h1>" in text
    assert "Who works" not in text
    assert "id-1" not in text.split('id="data"')[0].split("</style>")[1]

    beside(output, ".report.json").unlink()
    status, _, err = run("inspect-cache", str(output), "--html", "page.html")
    assert status == 0
    assert "page → page.html" in err
    assert "left no report" in Path("page.html").read_text()
    assert len(data_of(Path("page.html"))["timeline"]["t"]) > 1


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("left/rows.out.jsonl", "is the output itself"),
        ("left/rows.out.jsonl.snapshot.npz", "is the snapshot itself"),
        ("left/rows.jsonl", "exists and is not a page of pagedrun"),
        ("left", "name a file in an existing folder"),
    ],
)
def test_inspect_cache_replaces_nothing_but_pages(run: Command, target: str, sentence: str) -> None:
    output = left()
    before = {each: each.read_bytes() for each in Path("left").iterdir()}
    status, _, err = run("inspect-cache", str(output), "--html", target)
    assert status == 2
    assert sentence in err
    assert {each: each.read_bytes() for each in Path("left").iterdir()} == before


def test_a_recipe_may_ask_for_a_page(run: Command) -> None:
    Path("page.yaml").write_text("max_tokens: 4\nhtml: no/page.html\n")
    status, _, err = run("generate", "rows.jsonl", "--model", "demo", "--recipe", "page.yaml")
    assert (status, Path("rows.out.jsonl").exists()) == (2, False)
    assert "html (page.yaml line 2) " in err
    assert "name a file in an existing folder" in err
