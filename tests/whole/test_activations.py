"""Inputs of layers with quantized weights: chosen by a flag, written down, and not mixed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun import LLM
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.quantized_form import Activations, CodeKernels
from pagedrun.paged.execution.device import choose_device
from pagedrun.paged.execution.device_facts import DeviceFacts, DeviceMemory, probe_device
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.models.checkpoint.header import CheckpointHeader
from pagedrun.paged.models.linear_layers import LinearLayers
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.command import Command
from tests.support.gguf_writer import mixed, wide, write_gguf
from tests.support.jsonl import write_jsonl
from tests.support.quantized_checkpoints import write
from tests.support.quantized_forms import HELD, TABLES
from tests.whole.command_server import CommandServer

PORTABLE = KernelSet.PORTABLE.value
TILES, PANELS = CodeKernels.TILES, CodeKernels.PANELS
AUTO, EXACT, INT8 = Activations


class Listener(JobListener):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def plain(make_model: MakeModel) -> Path:
    return make_model("qwen2", "activations", dtype="bfloat16", max_position_embeddings=1200)


@pytest.fixture
def quantized(plain: Path, tmp_path: Path) -> Path:
    """Four bits, except in one projection of each layer."""
    write(plain, tmp_path / "codes", *HELD["awq"][:2], keeps="v_proj")
    return tmp_path / "codes"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Rows that share a prefix which is long enough for the store."""
    shared = [token % 256 for token in range(1100)]
    prompts = [{"prompt_token_ids": [*shared, index]} for index in range(4)]
    return write_jsonl(tmp_path / "rows.jsonl", prompts)


def job(rows: Path, model: Path, activations: str = "auto", **engine: Any) -> JobConfig:
    config = EngineConfig(model, kernel_set=PORTABLE, activations=activations, **engine)
    return JobConfig(
        input=str(rows),
        output=str(rows.with_name("out.jsonl")),
        engine=config,
        sampling=SamplingParams(max_tokens=3),
    )


def run(config: JobConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a job and return its manifest and its report."""
    report: Any = run_job(config).report
    return json.loads(Path(f"{config.output}.run.json").read_text()), report


@pytest.mark.parametrize(
    ("asked", "effective", "num_int8"), [("auto", "int8", 12), ("exact", "exact", 0)]
)
def test_manifest_and_report_of_a_quantized_model(
    asked: str, effective: str, num_int8: int, quantized: Path, rows: Path
) -> None:
    manifest, report = run(job(rows, quantized, asked))
    assert manifest["arithmetic"]["activations"] == effective
    assert manifest["parameters"]["activations"] == {"value": asked, "origin": "default"}
    assert report["config"]["activations"] == asked
    weights = report["weights"]
    assert (weights["quantized_layers"], weights["int8_layers"]) == (12, num_int8)
    assert weights["linear_layers"] == 15  # a head, and seven projections in each of two layers


def test_a_plain_model_has_none(plain: Path, rows: Path) -> None:
    manifest, report = run(job(rows, plain, "int8"))
    assert "activations" not in manifest["arithmetic"]
    assert (report["weights"]["quantized_layers"], report["weights"]["int8_layers"]) == (0, 0)
    run(replace(job(rows, plain, "exact"), resume=True))


def test_other_inputs_are_not_resumed_with(quantized: Path, rows: Path) -> None:
    run(job(rows, quantized, "exact"))
    before = rows.with_name("out.jsonl").read_bytes()
    with pytest.raises(UsageError) as refusal:
        run(replace(job(rows, quantized), resume=True))
    sentence = str(refusal.value)
    assert "differently: activations was exact and is int8; " in sentence
    assert "pass activations exact, or pass overwrite instead of resume" in sentence
    assert rows.with_name("out.jsonl").read_bytes() == before
    run(replace(job(rows, quantized, "exact"), resume=True))  # as the sentence says


def test_settings_of_the_same_effect_are_resumed_with(quantized: Path, rows: Path) -> None:
    run(job(rows, quantized, "auto"))
    run(replace(job(rows, quantized, "int8"), resume=True))


def test_a_manifest_of_a_version_without_the_flag_had_exact_ones(
    quantized: Path, rows: Path
) -> None:
    config = job(rows, quantized, "exact")
    manifest, _ = run(config)
    del manifest["arithmetic"]["activations"]
    del manifest["parameters"]["activations"]
    Path(f"{config.output}.run.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="activations was exact and is int8"):
        run(replace(job(rows, quantized), resume=True))
    run(replace(config, resume=True))


def test_prefixes_of_other_inputs_are_not_taken_over(
    quantized: Path, plain: Path, rows: Path, tmp_path: Path
) -> None:
    def loaded(model: Path, activations: str) -> tuple[int, list[str]]:
        listener = Listener()
        config = job(rows, model, activations, prefix_store=tmp_path / f"store of {model.name}")
        report = run_job(replace(config, overwrite=True), listener).report
        return report["prefix_store"]["loaded_tokens"], listener.warnings

    assert loaded(quantized, "exact") == (0, [])
    tokens, (warning,) = loaded(quantized, "auto")
    assert tokens == 0
    assert "machine or version" in warning
    assert loaded(quantized, "int8") == (1100, [])
    assert loaded(quantized, "exact") == (1100, [])
    assert loaded(plain, "exact") == (0, [])
    assert loaded(plain, "int8") == (1100, [])


def layers(
    model: Path, kernels: CodeKernels, activations: Activations = AUTO, dtype: str = "bfloat16"
) -> LinearLayers:
    config, header = ModelConfig.from_folder(model), CheckpointHeader.read(model)
    return LinearLayers.of_checkpoint(config, header, kernels, dtype, activations)


def test_layers_of_a_mixed_file(make_model: MakeModel, tmp_path: Path) -> None:
    """Its tied head is a layer too, and quantized."""
    path = tmp_path / "model.gguf"
    write_gguf(wide(make_model, "llama", tie_word_embeddings=True), path, mixed)
    for dtype in ("bfloat16", "float32"):
        assert layers(path, PANELS, AUTO, dtype) == LinearLayers(15, 15, 15, INT8)
        assert layers(path, PANELS, EXACT, dtype) == LinearLayers(15, 15, 0, EXACT)
        assert layers(path, TILES, AUTO, dtype) == LinearLayers(15, 15, 0, EXACT)
        assert layers(path, TILES, INT8, dtype) == LinearLayers(15, 15, 15, INT8)
    assert layers(path, CodeKernels.GPU, EXACT) == LinearLayers(15, 15, 0, None)


@pytest.mark.parametrize("form", ["fp8", "nf4"])
def test_floats_are_never_concerned(form: str, make_model: MakeModel, tmp_path: Path) -> None:
    dense = make_model("qwen2", "quantized", tie_word_embeddings=False)
    write(dense, tmp_path, *(TABLES[form] if form in TABLES else HELD[form][:2]))
    found = layers(tmp_path, PANELS, INT8)
    assert found == LinearLayers(15, 14 if form == "fp8" else 0, 0, None)


def test_scattered_groups_may_be_concerned(make_model: MakeModel, tmp_path: Path) -> None:
    """Whether they really are scattered, only the tensors say."""
    dense = make_model("qwen2", "quantized", tie_word_embeddings=False)
    write(dense, tmp_path, *HELD["gptq in any order"][:2])
    assert layers(tmp_path, PANELS, INT8) == LinearLayers(15, 0, 0, INT8)
    assert layers(tmp_path, PANELS, EXACT) == LinearLayers(15, 0, 0, EXACT)


def test_experts_count_once_for_each_projection(make_model: MakeModel, tmp_path: Path) -> None:
    """Heads, routers and attention aside, there are three projections of experts in two layers."""
    write(make_model("qwen3_moe", "quantized"), tmp_path, *HELD["awq"][:2])
    for kernels in (PANELS, TILES):
        found = layers(tmp_path, kernels, INT8)
        assert (found.num_layers, found.num_quantized, found.num_int8) == (17, 14, 14)


def test_layers_that_are_rounded_to_int8_anyway(plain: Path) -> None:
    config = ModelConfig.from_folder(plain).held_as("int8", plain)
    found = LinearLayers.of_checkpoint(
        config, CheckpointHeader.read(plain), TILES, "bfloat16", EXACT
    )
    assert found == LinearLayers(15, 15, 15, None)


def test_python_takes_it(quantized: Path) -> None:
    llm = LLM(quantized, kernel_set=PORTABLE, device="cpu", activations="exact")
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=1))
    assert llm.report["weights"]["int8_layers"] == 0
    with pytest.raises(UsageError, match="activations is 'fp8'"):
        LLM(quantized, activations="fp8")


def test_devices_carry_it() -> None:
    assert choose_device("cpu").kernels.activations is AUTO
    assert choose_device("cpu", PORTABLE, "exact").kernels.activations is EXACT
    assert probe_device("cpu", PORTABLE, "int8").activations is INT8


def test_a_gpu_refuses_int8_before_torch_is_asked_for_it() -> None:
    words = "^activations int8 needs a CPU: .*; use auto or exact, or device cpu$"
    with pytest.raises(UsageError, match=words):
        choose_device("cuda", "auto", "int8")
    with pytest.raises(UsageError, match=words):
        probe_device("cuda", "auto", "int8")


@pytest.mark.parametrize("command", ["generate", "plan"])
def test_the_command_refuses_int8_on_a_gpu(
    command: str, server: CommandServer, quantized: Path, rows: Path, tmp_path: Path
) -> None:
    """One sentence, and no output: the weights are not read."""
    args = [command, rows.name, "--model", str(quantized), "--device", "cuda"]
    status, told = server.run([*args, "--activations", "int8"], tmp_path)
    assert status == 2
    assert told.splitlines()[-1].startswith("Error: --activations int8 needs a CPU")
    assert told.splitlines()[-1].endswith("use auto or exact, or --device cpu")
    assert not (tmp_path / "rows.out.jsonl").exists()


def test_a_flag_overrides_a_recipe(
    quantized: Path, rows: Path, tmp_path: Path, pagedrun: Command
) -> None:
    """The screen of the run names them too."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text("activations: exact\nmax_tokens: 1\n")
    out = tmp_path / "out.jsonl"
    args = [
        *("generate", rows, "--model", quantized, "--recipe", recipe, "-o", out),
        *("--kernel-set", "portable", "--overwrite", "--progress", "none"),
    ]
    for flags, value, origin, told in (
        ((), "exact", "recipe", "activations exact"),
        (("--activations", "int8"), "int8", "flag", "activations int8 in 12 of 15 layers"),
    ):
        status, _, err = pagedrun(*args, *flags)
        assert status == 0, err
        manifest = json.loads(Path(f"{out}.run.json").read_text())
        assert manifest["parameters"]["activations"] == {"value": value, "origin": origin}
        assert told in " ".join(err.split())


def test_the_plan_names_them(quantized: Path, rows: Path, pagedrun: Command) -> None:
    args = ("plan", rows, "--model", quantized, "--kernel-set", "portable")
    _, out, err = pagedrun(*args)
    assert "activations int8 in 12 of 15 layers" in " ".join((out + err).split())
    _, out, _ = pagedrun(*args, "--activations", "exact", "--json", "--quiet")
    forecast = json.loads(out)
    assert forecast["config"]["activations"] == "exact"
    weights = forecast["weights"]
    assert (weights["quantized_layers"], weights["int8_layers"]) == (12, 0)
    status, _, err = pagedrun(*args, "--activations", "fp8")
    assert status == 2
    assert "--activations" in err


def test_a_plan_for_a_gpu_has_exact_ones(quantized: Path) -> None:
    facts = DeviceFacts(
        KernelSet.PORTABLE.read_once,
        memory=DeviceMemory(1 << 34, 1 << 34),
        code_kernels=CodeKernels.GPU,
        activations=EXACT,
    )
    assert layers(quantized, facts.code_kernels, facts.activations).num_int8 == 0
