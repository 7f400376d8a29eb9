"""Streamed weights from the command: memory, plan, and what a broken disk leaves behind."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.values.engine_config import EngineConfig
from tests.conftest import MakeModel, save_byte_tokenizer, save_random_model
from tests.support.command import run_command
from tests.support.comparable import comparable_rows
from tests.support.every_pair import long_except
from tests.support.jsonl import read_jsonl
from tests.support.streamed import packed_entries, streaming
from tests.whole.command_server import CommandServer

MIB = 2**20


@pytest.fixture
def deep(make_model: MakeModel) -> Path:
    return make_model("qwen3", "deep", num_hidden_layers=9)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [{"prompt_token_ids": [i % 256, *range(9)], "max_tokens": 5} for i in range(40)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture
def flags(deep: Path, tmp_path: Path) -> list[Any]:
    """Those of a run that streams most layers."""
    packed = tmp_path / "packed"
    engine = streaming(EngineConfig(model=deep, dtype="float32"), packed, 0.25)
    streamed = ["--weights-memory", engine.config.weights_memory, "--packed-dir", packed]
    return ["--model", deep, "--dtype", "float32", *streamed]


def test_the_plan_counts_the_bytes_that_are_read(
    rows: Path, flags: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [rows, *flags, "--max-num-seqs", 8]
    status, out, _ = run_command(capsys, "plan", *common, "--json", "--quiet")
    assert status == 0
    planned = json.loads(out)
    output = tmp_path / "out.jsonl"
    assert run_command(capsys, "generate", *common, "-o", output, "--ignore-eos", "--quiet")[0] == 0
    report = json.loads((tmp_path / "out.jsonl.report.json").read_text())
    for name in ("pinned_bytes", "ring_bytes"):
        assert planned["streaming"][name] == report["streaming"][name]
    expected, found = planned["weights"], report["weights"]
    for name in ("streamed_bytes", "passes", "resident_bytes"):
        assert expected[name] == pytest.approx(found[name], rel=0.01)
    # The ring is filled before the run, and at its end for a pass that never comes.
    difference = abs(found["bytes_read"] - expected["bytes_read"])
    assert difference <= max(0.01 * expected["bytes_read"], planned["streaming"]["ring_bytes"])
    assert planned["streaming"]["limit"] in ("disk", "arithmetic", "KV memory")


def test_damaged_weights_are_packed_again(
    rows: Path, flags: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Noticed while they are read for the first time, after the model's own files are closed."""
    command = ["generate", rows, *flags, "--quiet"]
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert run_command(capsys, *command, "-o", whole)[0] == 0
    paths = [each.path for each in packed_entries(tmp_path / "packed")]
    good = [path.read_bytes() for path in paths]
    for path in paths:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    status, _, errors = run_command(capsys, *command, "-o", output)
    assert (status, errors) == (0, "")
    assert comparable_rows(output) == comparable_rows(whole)
    assert [path.read_bytes() for path in paths] == good


def test_a_failing_disk_loses_no_row(
    rows: Path,
    flags: list[Any],
    server: CommandServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["generate", rows, *flags, "--max-num-seqs", 4, "--quiet"]
    whole = tmp_path / "whole.jsonl"
    assert run_command(capsys, *command, "-o", whole)[0] == 0
    output = tmp_path / "out.jsonl"
    before = """
import os
reads = [0]
preadv = os.preadv
def failing(descriptor, buffers, offset):
    reads[0] += 1
    if reads[0] > 200:
        raise OSError(5, "Input/output error")
    return preadv(descriptor, buffers, offset)
os.preadv = failing
"""
    status, told = server.run([*map(str, command), "-o", output], tmp_path, before=before)
    assert status == 1
    assert "the packed weights cannot be read (Input/output error); check the disk" in told
    assert 0 < len(read_jsonl(output)) < 40
    assert run_command(capsys, *command, "-o", output, "--resume")[0] == 0
    assert comparable_rows(output) == comparable_rows(whole)


def test_what_cannot_be_streamed_is_refused(
    rows: Path, deep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", rows, "--model", deep, "-o", tmp_path / "out.jsonl", "--quiet"]
    memory = ["--weights-memory", "1KiB"]
    status, _, err = run_command(capsys, *command, *memory, "--packed-dir", tmp_path / "packed")
    assert status == 2
    assert "--weights-memory 1024 bytes cannot hold" in err
    status, _, err = run_command(capsys, *command, *memory, "--model-impl", "transformers")
    assert status == 2
    assert "--weights-memory: Transformers' code computes qwen3 with all weights in memory" in err
    status, _, err = run_command(
        capsys, *command, *memory, "--packed-dir", tmp_path / "packed2", "--packed-bytes", "1KiB"
    )
    assert status == 2
    assert "more than --packed-bytes" in err


class Throttle:
    """A disk that reads `bytes_per_s`, however many calls there are at a time."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._preadv = os.preadv

    def __call__(self, descriptor: int, buffers: list[memoryview], offset: int) -> int:
        with self._lock:
            begin = max(time.perf_counter(), self._free_at)
            self._free_at = ends_at = begin + sum(map(len, buffers)) / self._bytes_per_s
        count = self._preadv(descriptor, buffers, offset)
        time.sleep(max(ends_at - time.perf_counter(), 0.0))
        return count


@pytest.mark.parametrize("bytes_per_s", long_except([1e8, 2e8], [2e8]))
def test_a_slow_disk_takes_the_time_of_the_plan(
    bytes_per_s: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, rows, output = tmp_path / "model", tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    sizes: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 2048}
    save_random_model(model, "qwen3", num_hidden_layers=12, **sizes)
    save_byte_tokenizer(model, adds_bos=False)
    lines = [{"prompt_token_ids": [i, 1, 2], "max_tokens": 4} for i in range(8)]
    rows.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(os, "preadv", Throttle(bytes_per_s))
    streamed = ["--weights-memory", "48MiB", "--packed-dir", tmp_path / "packed"]
    flags = ["--model", model, "--dtype", "float32", *streamed]
    assert run_command(capsys, "warmup", *flags, "--quiet")[0] == 0
    _, out, _ = run_command(capsys, "plan", rows, *flags, "--json", "--quiet")
    planned = json.loads(out)["streaming"]
    assert planned["limit"] == "disk"
    assert planned["bytes_per_s"] == pytest.approx(bytes_per_s, rel=0.1)  # not the disk below
    command = ["generate", rows, *flags, "-o", output, "--ignore-eos", "--quiet"]
    assert run_command(capsys, *command)[0] == 0
    report = json.loads(Path(f"{output}.report.json").read_text())
    # The first slots of the first pass were filled before the run began.
    assert report["time"]["run_s"] == pytest.approx(planned["run_s"], rel=0.15)
    assert report["streaming"]["wait_s"] > 0.5 * report["time"]["run_s"]


SAMPLED = """
import sys, threading, time
from dataclasses import replace
from pathlib import Path
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.engines import load_engine

def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024

def run(engine):
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    requests = [Request(i, (i, 2, 3), params) for i in range(8)]
    assert len(list(engine.start(requests))) == 8

small, large, packed, memory, dtype = sys.argv[1:]
config = EngineConfig(model=Path(small), dtype=dtype, kv_cache_memory_bytes=2**22)
run(load_engine(config))
idle = peak = resident()
is_done = False

def sample():
    global peak
    while not is_done:
        peak = max(peak, resident())
        time.sleep(0.002)

thread = threading.Thread(target=sample)
thread.start()
run(load_engine(replace(
    config, model=Path(large), weights_memory=int(memory), packed_dir=Path(packed)
)))
is_done = True
thread.join()
print(peak - idle)
"""


@pytest.mark.heavy("weights of several times the budget are written, packed and streamed")
@pytest.mark.parametrize(
    ("dtype", "budget"),
    [("float32", 64), pytest.param("bfloat16", 36, marks=pytest.mark.long)],
)
def test_memory_stays_within_the_budget(
    dtype: str, budget: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above an engine without weights: the budget, the pool and a fifth.

    Where oneDNN owns the memory of bfloat16 weights, streamed layers share the copy of one layer,
    which is not counted in the budget.
    """
    small, large = tmp_path / "small", tmp_path / "large"
    sizes: dict[str, Any] = {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "tie_word_embeddings": True,
    }
    for folder, num_layers in ((small, 1), (large, 24)):
        save_random_model(folder, "qwen3", num_hidden_layers=num_layers, **sizes)
        save_byte_tokenizer(folder, adds_bos=False)
    memory, pool = budget * MIB, 4 * MIB
    args = [str(small), str(large), str(tmp_path / "packed"), str(memory), dtype]
    streamed = ["--weights-memory", memory, "--packed-dir", tmp_path / "packed"]
    flags = ["--model", large, "--dtype", dtype, *streamed]
    assert run_command(capsys, "warmup", *flags, "--quiet")[0] == 0
    done = subprocess.run(
        [sys.executable, "-c", SAMPLED, *args], capture_output=True, text=True, check=True
    )
    taken = int(done.stdout.split()[-1])
    sizes_of_entries = [each.num_bytes for each in packed_entries(tmp_path / "packed")]
    assert sum(sizes_of_entries) > 4 * memory
    copies = max(sizes_of_entries) if dtype == "bfloat16" else 0
    assert 0.5 * memory < taken <= 1.2 * (memory + copies + pool)


FEATURES: dict[str, list[Any]] = {
    "samples": ["--n", 4, "--temperature", 1, "--seed", 5],
    "beams": ["--beam-width", 3],
    "structure": ["--choice", "yes", "--choice", "no", "--choice", "maybe later"],
    "log-probabilities": ["--logprobs", 2, "--prompt-logprobs", 1],
    "penalties": ["--frequency-penalty", 0.5, "--repetition-penalty", 1.2],
    "int8 cache": ["--kv-cache-dtype", "int8"],
    "a file to swap to": ["--num-blocks", 12, "--max-num-seqs", 9, "--swap-dir", "."],
    "small pool": ["--num-blocks", 12, "--max-num-seqs", 9],
    "small steps": ["--max-num-batched-tokens", 17],
    "eager": ["--enforce-eager"],
    "deadline": ["--deadline", "1h"],
}
# The others change nothing that layers are asked for, or ask for it as one of these does.
TELLING = [*FEATURES.keys() - {"penalties", "small pool", "eager", "deadline"}]


@pytest.mark.parametrize("feature", long_except(FEATURES, TELLING))
def test_answers_have_the_same_bytes(
    feature: str, rows: Path, flags: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resident = flags[: flags.index("--weights-memory")]
    asked = [rows, *FEATURES[feature], "--ordered", "--quiet"]
    for name, given in (("resident", resident), ("streamed", flags)):
        output = tmp_path / f"{name}.jsonl"
        assert run_command(capsys, "generate", *asked, *given, "-o", output)[0] == 0
    assert comparable_rows(tmp_path / "streamed.jsonl") == comparable_rows(
        tmp_path / "resident.jsonl"
    )


def test_stored_prefixes_are_those_of_resident_weights(
    flags: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, store = tmp_path / "rows.jsonl", tmp_path / "store"
    shared = list(range(100))
    lines = [{"prompt_token_ids": [*shared, i], "max_tokens": 3} for i in range(6)]
    rows.write_text("\n".join(map(json.dumps, lines)))
    store.mkdir()
    resident = flags[: flags.index("--weights-memory")]
    found = {}
    for name, given in (("streamed", flags), ("resident", resident)):
        output = tmp_path / f"{name}.jsonl"
        asked = [rows, *given, "-o", output, "--prefix-store", store, "--quiet"]
        assert run_command(capsys, "generate", *asked)[0] == 0
        found[name] = json.loads(Path(f"{output}.report.json").read_text())["prefix_store"]
    assert found["streamed"]["stored_tokens"] > 0
    assert found["resident"]["loaded_tokens"] > 0
    assert comparable_rows(tmp_path / "streamed.jsonl") == comparable_rows(
        tmp_path / "resident.jsonl"
    )


def test_the_inspection_shows_pinned_and_streamed_layers(
    rows: Path, flags: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, page = tmp_path / "out.jsonl", tmp_path / "run.html"
    command = ["generate", rows, *flags, "-o", output, "--quiet", "--html", page]
    assert run_command(capsys, *command)[0] == 0
    layers = json.loads(Path(f"{output}.report.json").read_text())["streaming"]["layers"]
    assert set(layers) == {"p", "s"}
    assert len(layers) == 9 + 1
    status, _, screen = run_command(capsys, "inspect-cache", output)
    assert status == 0
    assert "Weights read in each pass" in screen
    assert layers in screen
    status, out, _ = run_command(capsys, "inspect-cache", output, "--json")
    assert json.loads(out)["streaming"]["layers"] == layers
    assert layers in page.read_text()
