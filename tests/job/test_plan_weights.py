"""What a plan says of a model's weights: what the run of the same file reports."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from pagedrun.cli.report.report_figures import unpacking_warning
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.paged.execution.device_facts import DeviceFacts
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.planned.plan_file import plan_file
from pagedrun.paged.job.planned.planned_weights import WeightExpansion
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.values.engine_config import EngineConfig
from tests.conftest import MakeModel
from tests.support.command import Command
from tests.support.gguf_writer import wide, write_gguf
from tests.support.jsonl import write_jsonl
from tests.support.low_bit_writers import AwqWriter
from tests.support.plan_jobs import assert_told, generated_rows, job
from tests.support.quantized_checkpoints import write
from tests.support.quantized_forms import HELD, TABLES

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "rows.jsonl", generated_rows(40))


def told_and_done(config: JobConfig) -> tuple[Any, Any]:
    forecast, report = plan_file(config, JobListener()), run_job(config).report
    assert_told(forecast, report)
    assert forecast["weights"] == report["weights"]
    assert report["weights"]["held_bytes"] == report["memory"]["weights"]
    return forecast["weights"], report["weights"]


def kind_of(name: str) -> str:
    return "Q8_0" if "embed" in name else "Q4_0"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_a_gguf_file(dtype: str, make_model: MakeModel, rows: Path, tmp_path: Path) -> None:
    folder = make_model("qwen3", "gguf-source")
    meant = write_gguf(folder, tmp_path / "model.gguf", kind_of)
    config = job(rows, tmp_path / "model.gguf", tokenizer=folder, dtype=dtype)
    weights, _ = told_and_done(config)
    assert weights["count"] == sum(each.numel() for each in meant.values())
    matrices = {name: each.numel() for name, each in meant.items() if each.dim() == 2}
    norms = sum(each.numel() for each in meant.values() if each.dim() == 1)
    blocks = sum(count // 32 * (34 if "embed" in name else 18) for name, count in matrices.items())
    assert weights["stored_bytes"] == blocks + 4 * norms
    assert 4.5 < weights["stored_bits"] < 8.5


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "not tied"])
def test_of_a_quantised_folder(
    is_tied: bool, make_model: MakeModel, rows: Path, tmp_path: Path
) -> None:
    dense = make_model("qwen2", "quantized", tie_word_embeddings=is_tied)
    write(dense, tmp_path / "codes", AWQ, AwqWriter(32))
    weights, _ = told_and_done(job(rows, tmp_path / "codes"))
    plain, _ = told_and_done(job(rows, dense))
    assert weights["count"] == plain["count"]
    assert plain["stored_bits"] == 32
    assert weights["stored_bits"] < 32
    with safe_open(tmp_path / "codes" / "model.safetensors", "pt") as file:
        stored = sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
    assert weights["stored_bytes"] == stored


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_weights_that_are_rounded_to_int8(dtype: str, make_model: MakeModel, rows: Path) -> None:
    dense = make_model("qwen2", "int8", tie_word_embeddings=False, dtype="bfloat16")
    weights, _ = told_and_done(job(rows, dense, dtype=dtype, quantization="int8"))
    assert weights["stored_bits"] == 16
    assert weights["held_bits"] < 20


def expansion(model: Path, dtype: str, kernels: KernelSet) -> WeightExpansion | None:
    device = DeviceFacts(kernels.read_once, code_kernels=kernels.code_kernels)
    return WeightExpansion.of(EngineConfig(model=model, dtype=dtype), device)


@pytest.mark.parametrize("kernels", KernelSet)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gguf_file_is_unpacked_nowhere(
    dtype: str, kernels: KernelSet, make_model: MakeModel, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(make_model("qwen3", "gguf-source"), path, kind_of)
    assert expansion(path, dtype, kernels) is None


@pytest.mark.parametrize("kernels", KernelSet)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_are_unpacked_nowhere(
    dtype: str, kernels: KernelSet, make_model: MakeModel, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(make_model("qwen3_moe", "quantized"), path, kind_of)
    assert expansion(path, dtype, kernels) is None


@pytest.mark.parametrize("form", ["nf4", "gptq in any order"])
def test_what_no_kernels_hold_is_advised_fewer_bits_at_most(
    form: str, make_model: MakeModel, tmp_path: Path
) -> None:
    """Another kernel set would not help, and is not named."""
    quantization, writer = TABLES[form] if form in TABLES else HELD[form][:2]
    write(wide(make_model, "qwen2", dtype="bfloat16"), tmp_path, quantization, writer)
    for kernels in KernelSet:
        found = expansion(tmp_path, "float32", kernels)
        assert found is not None
        assert found.settings == (("dtype", "bfloat16"),)
        found = expansion(tmp_path, "bfloat16", kernels)
        assert found is not None
        assert (found.settings, found.least_bytes) == ((), 0)
        assert "no setting holds them in less" in unpacking_warning(tmp_path, found)


def test_plain_weights_and_missing_ones_are_not_told_of(
    make_model: MakeModel, tmp_path: Path
) -> None:
    device = DeviceFacts(KernelSet.PORTABLE.read_once)
    for folder in (make_model("qwen3", "gguf-source"), tmp_path):
        assert WeightExpansion.of(EngineConfig(model=folder, dtype="float32"), device) is None


def test_every_command_warns_of_it(
    make_model: MakeModel,
    rows: Path,
    tmp_path: Path,
    pagedrun: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", None)  # ask would read it
    folder = wide(make_model, "qwen2", tie_word_embeddings=False)
    write(folder, tmp_path / "model", *TABLES["nf4"])
    model = ("--model", tmp_path / "model", "--dtype", "float32")
    for command in (
        ("plan", rows, "--progress", "none"),
        ("generate", rows, "-o", tmp_path / "no" / "out.jsonl", "--progress", "none"),
        ("warmup",),
        ("ask", "why", "--max-tokens", "1"),
    ):
        _, _, err = pagedrun(*command, *model)
        assert "Warning: model: its weights take " in err, command[0]
        assert "--dtype bfloat16" in err, command[0]


@pytest.mark.parametrize("damage", ["cut", "gone", "an index that lies"])
def test_weights_that_cannot_be_read_are_of_no_known_size(
    damage: str, make_model: MakeModel, rows: Path, tmp_path: Path
) -> None:
    """A plan is for a model that is perhaps not there yet."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in make_model("qwen3", "plan").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = folder / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:5000])
    else:
        weights.unlink()
    if damage == "an index that lies":
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../a.bin"}}')
    told = plan_file(job(rows, folder), JobListener())["weights"]
    assert (told["stored_bytes"], told["stored_bits"]) == (None, None)
    assert told["held_bytes"] > 0


@pytest.mark.parametrize("is_gguf", [pytest.param(False, marks=pytest.mark.long), True])
def test_headers_are_read_without_torch(
    is_gguf: bool, make_model: MakeModel, rows: Path, tmp_path: Path
) -> None:
    folder = make_model("qwen3", "gguf-source")
    model = folder
    if is_gguf:
        model = tmp_path / "model.gguf"
        write_gguf(folder, model, kind_of)
    script = (
        "import json, sys; from pagedrun.cli.main import run\n"
        f"sys.argv = ['pagedrun', 'plan', {str(rows)!r}, '--model', {str(model)!r}]\n"
        f"sys.argv += ['--tokenizer', {str(folder)!r}, '--device', 'cpu', '--dtype', 'float32']\n"
        "run(); print('torch' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.endswith("False\n"), done.stderr
    assert "bits a weight; on disk" in " ".join(done.stderr.split())
