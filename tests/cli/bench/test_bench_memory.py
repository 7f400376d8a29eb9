"""`pagedrun bench memory` as a user meets it."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli.bench.memory import CHART_CHARS, DONE, memory_sheets
from pagedrun.paged.bench.memory import CacheShape, MemoryBench, MemoryBenchFigures, NormalLengths
from pagedrun.paged.bench.result import plain
from tests.support.command import Command

SMALL = ["--requests", "4,20", "--mean", "40", "--std", "20", "--min-len", "8", "--max-len", "128"]
DEMO = Path(__file__).resolve().parents[3] / "recipes" / "demo"


@pytest.fixture
def bench(pagedrun: Command) -> Command:
    return partial(pagedrun, "bench", "memory")


def small_result(**changes: Any) -> MemoryBenchFigures:
    settings = {"lengths": NormalLengths(40, 20, 8, 128), "counts": (4, 20), "num_shared": 20}
    bench = MemoryBench(**{**settings, **changes})
    return bench.run(lambda message: None)


class TestRuns:
    def test_json_alone_on_stdout_and_tables_on_stderr(self, bench: Command) -> None:
        status, out, err = bench(*SMALL, "--shared", "20", "--json")
        assert status == 0
        result = json.loads(out)
        assert result["bench"] == "memory"
        assert result["command"].startswith("pagedrun bench memory --requests 4,20")
        expected = plain(small_result())
        assert {name: result[name] for name in expected} == expected
        for words in (
            "524,288 bytes of keys and values, in 32 layers of 32 kv heads of 128, float16",
            "8 to 128 tokens, normal around 40 with deviation 20, seed 0",
            "Memory that stores tokens, all requests at once",
            "A system prompt of 20 tokens, 4 requests",
            "When one of the answers continues: 1 block copied, 3 held.",
            "20 requests that join and leave in 640.0 MiB",
            "in flight, contiguous",
            "External fragmentation, in pieces of exact lengths",
            "Block sizes, 20 requests",
        ):
            assert words in " ".join(err.split()), words

    def test_options_reach_the_count(self, bench: Command, tmp_path: Path) -> None:
        path = tmp_path / "memory.md"
        extra = "--shape qwen3-8b --dtype fp8 --block-size 32 --shared 0 --seed 5 "
        extra += "--kv-cache-memory-bytes 1GiB --quiet --json --save"
        status, out, err = bench(*SMALL, *extra.split(), str(path))
        assert (status, err) == (0, "")
        result = json.loads(out)
        assert result["shape"]["bytes_per_token"] == 36 * 8 * (128 + 4) * 2
        assert (result["block_size"], result["sharing"]) == (32, None)
        assert result["lengths"]["seed"] == 5
        assert result["over_time"]["memory_bytes"] <= 2**30
        text = path.read_text()
        assert "### Memory that stores tokens, all requests at once" in text
        assert "A system prompt" not in text
        assert "| in flight, paged | " in text

    def test_heads_of_ones_own(self, bench: Command, tmp_path: Path) -> None:
        path = tmp_path / "memory.json"
        heads = ["--layers", "4", "--kv-heads", "2", "--head-dim", "64", "--dtype", "float32"]
        status, out, _ = bench(*SMALL, *heads, "--save", str(path))
        assert (status, out) == (0, "")
        shape = json.loads(path.read_text())["shape"]
        assert shape == plain(CacheShape("llama-2-7b, changed", 4, 2, 64, "float32"))
        assert shape["bytes_per_token"] == 2 * 4 * 2 * 64 * 4

    def test_of_a_model_only_its_config_is_read(self, bench: Command, tmp_path: Path) -> None:
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "config.json").write_bytes((DEMO / "config.json").read_bytes())
        config = json.loads((DEMO / "config.json").read_text())
        status, out, _ = bench(*SMALL, "--model", str(folder), "--json", "--quiet")
        assert status == 0
        shape = json.loads(out)["shape"]
        assert (shape["name"], shape["num_layers"]) == ("model", config["num_hidden_layers"])
        assert shape["num_kv_heads"] == config["num_key_value_heads"]


class TestSheets:
    @pytest.mark.parametrize("num_requests", [20, 200])
    def test_charts_have_the_same_axes(self, num_requests: int) -> None:
        result = small_result(counts=(4, num_requests))
        charts = next(sheet for sheet in memory_sheets(result) if "first step" in sheet.title)
        bars = {label: bars for label, bars, _ in charts.rows}
        flows = result["over_time"]
        width = min(CHART_CHARS, flows["contiguous"].steps)
        assert {len(each) for each in bars.values()} == {width}
        assert flows["contiguous"].steps > flows["paged"].steps
        assert DONE not in bars["in flight, contiguous"]
        drawn = width - bars["in flight, paged"].count(DONE)
        share = flows["paged"].steps / flows["contiguous"].steps
        assert drawn == pytest.approx(share * width, abs=1)
        assert "█" in bars["in flight, paged"]
        assert "█" not in bars["in flight, contiguous"]
        assert bars["blocks held, contiguous"].startswith("█")  # 10 of 10 blocks
        assert bars["in flight, contiguous"][0] not in "█▁"  # 10 of as many as the paged run has

    def test_gains_are_those_of_the_figures(self) -> None:
        result = small_result()
        _, _, over_time, _, _, _ = memory_sheets(result)
        contiguous, paged = (result["over_time"][way] for way in ("contiguous", "paged"))
        gain = paged.mean_running / contiguous.mean_running
        assert over_time.rows[3][2] == f"{gain:.2f}x"
        assert over_time.rows[3][7] == f"{contiguous.steps / paged.steps:.2f}x"

    def test_requests_that_never_stay_have_no_ratio(self) -> None:
        lengths = NormalLengths(1, 0, 1, 8)
        sheets = memory_sheets(small_result(lengths=lengths, block_size=8, num_shared=0))
        assert sheets[1].rows[3][2] == "–"
        assert all(len(row) == len(sheet.header) for sheet in sheets for row in sheet.rows)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("--requests 0", "--requests is 0; it must be at least 1"),
        ("--requests ten", "--requests takes whole numbers, such as --requests 0,128,512"),
        ("--min-len 300 --max-len 200", "--min-len 300 is more than --max-len 200"),
        ("--mean inf", "--mean is inf; it must be a number of at least 0"),
        ("--block-size 4096", "--block-size is 4096; it must be at least 1 and at most --max"),
        ("--kv-cache-memory-bytes 1GiB", "--kv-cache-memory-bytes 1073741824 holds 2048 tokens"),
        ("--kv-cache-memory-bytes much", "expected bytes, such as"),
        ("--shape gpt-9", "--shape gpt-9 is not known"),
        ("--shape tiny --model x", "--model and --shape exclude each other"),
        ("--revision main", "--revision needs --model"),
        ("--save x.txt", "must end in .json or .md"),
        ("--dtype int4", "--dtype"),
        ("--std -1", "--std"),
    ],
)
def test_refusals_name_the_flag(bench: Command, args: str, sentence: str) -> None:
    status, out, err = bench(*args.split())
    assert (status, out) == (2, "")
    assert sentence in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err


def test_it_runs_without_torch() -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['pagedrun', 'bench', 'memory', '--quiet', *{SMALL!r}]\n"
        "from pagedrun.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as error:\n    status = error.code\n"
        "print(status, 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.split() == ["0", "False"]
