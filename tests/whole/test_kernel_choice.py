"""Whose bits a job has: chosen by a flag, written down, and not mixed with others'."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.paged.execution.device_options import choose_kernel_set
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.jsonl import write_jsonl
from tests.whole.command_server import CommandServer

SUPPORTED = KernelSet.supported()
needs_two_sets = pytest.mark.skipif(len(SUPPORTED) < 2, reason="needs two kernel sets")


class Listener(JobListener):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def job(make_model: MakeModel, tmp_path: Path) -> JobConfig:
    """Rows that share a prefix which is long enough for the store."""
    shared = [token % 256 for token in range(1100)]
    rows = [{"prompt_token_ids": [*shared, index]} for index in range(4)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    model = make_model("qwen3", "chosen", dtype="bfloat16", max_position_embeddings=1200)
    return JobConfig(
        input=str(path),
        output=str(tmp_path / "out.jsonl"),
        engine=EngineConfig(model=model),
        sampling=SamplingParams(max_tokens=3),
    )


def run(job: JobConfig, **engine: Any) -> dict[str, Any]:
    """Run a job and return its manifest."""
    run_job(replace(job, engine=replace(job.engine, **engine)))
    manifest: dict[str, Any] = json.loads(Path(f"{job.output}.run.json").read_text())
    return manifest


@pytest.mark.parametrize("kernel_set", SUPPORTED)
def test_the_manifest_says_what_the_bits_depend_on(kernel_set: KernelSet, job: JobConfig) -> None:
    arithmetic = run(job, kernel_set=kernel_set.value)["arithmetic"]
    described = kernel_set.describe("bfloat16")
    assert {name: arithmetic[name] for name in described} == described
    assert arithmetic["device"] == "cpu"
    assert arithmetic["numba"]


def test_the_manifest_names_the_set_that_auto_comes_to(job: JobConfig) -> None:
    assert run(job)["arithmetic"]["kernel_set"] == KernelSet.best().value


@needs_two_sets
def test_another_set_is_not_resumed_with(job: JobConfig) -> None:
    one, other = SUPPORTED[-1].value, SUPPORTED[0].value
    run(job, kernel_set=one)
    before = Path(job.output).read_bytes()
    resumed = replace(job, resume=True)
    with pytest.raises(UsageError) as refusal:
        run(resumed, kernel_set=other)
    sentence = str(refusal.value)
    assert sentence.startswith("resume: the existing and the new rows would be")
    assert f"kernel set was {one} and is {other}" in sentence
    assert f"pass kernel_set {one} if the processor supports it, or pass overwrite" in sentence
    assert Path(job.output).read_bytes() == before
    run(resumed, kernel_set=one)  # as the sentence says


@pytest.mark.parametrize(
    ("name", "value"),
    [("kernel_set", "one-of-next-year"), ("version", 0), ("processor_features", [])],
)
def test_what_another_machine_has_begun_is_not_resumed(
    name: str, value: Any, job: JobConfig
) -> None:
    manifest = run(job)
    was = manifest["arithmetic"][name]
    manifest["arithmetic"][name] = value
    Path(f"{job.output}.run.json").write_text(json.dumps(manifest))
    told = f"{name.replace('_', ' ')} was {value} and is {was}"
    with pytest.raises(UsageError, match=re.escape(told)):
        run(replace(job, resume=True))


@needs_two_sets
def test_another_sets_prefixes_are_not_taken_over(job: JobConfig, tmp_path: Path) -> None:
    def loaded(kernel_set: KernelSet) -> tuple[int, list[str]]:
        engine = replace(job.engine, kernel_set=kernel_set.value, prefix_store=tmp_path / "store")
        listener = Listener()
        report = run_job(replace(job, engine=engine, overwrite=True), listener).report
        return report["prefix_store"]["loaded_tokens"], listener.warnings

    assert loaded(SUPPORTED[-1]) == (0, [])
    tokens, (warning,) = loaded(SUPPORTED[0])
    assert tokens == 0
    assert "machine or version" in warning
    assert loaded(SUPPORTED[0]) == (1100, [])  # now the store has both
    assert loaded(SUPPORTED[-1]) == (1100, [])


# Instructions that no processor has: tiles and pairs are refused on any machine.
LACKING = """
from pagedrun.kernels import kernel_set
kernel_set.has_features = lambda *names: False
"""


@pytest.mark.parametrize("command", ["generate", "plan"])
def test_sets_that_do_not_run_are_refused_with_a_sentence(
    command: str, server: CommandServer, job: JobConfig, tmp_path: Path
) -> None:
    args = [command, "rows.jsonl", "--model", str(job.engine.model), "--kernel-set"]
    status, told = server.run([*args, "amx"], tmp_path, before=LACKING)
    assert status == 2
    assert told.splitlines()[-1] == (  # a slow machine shows its progress before
        "Error: --kernel-set amx: this processor cannot run the kernel set amx; it runs portable"
    )
    status, told = server.run([*args, "nonsense"], tmp_path)
    assert status == 2
    assert "nonsense" in told
    assert all(each.value in told for each in KernelSet)
    assert not (tmp_path / "rows.out.jsonl").exists()


def test_a_variable_that_names_no_set_is_refused_with_a_sentence(
    server: CommandServer, job: JobConfig, tmp_path: Path
) -> None:
    before = "import os\nos.environ['PAGEDRUN_KERNEL_SET'] = 'fastest'"
    args = ["generate", "rows.jsonl", "--model", str(job.engine.model)]
    status, told = server.run(args, tmp_path, before=before)
    assert status == 2
    assert "there is no kernel set 'fastest'" in told.splitlines()[-1]


def test_a_variable_that_names_no_set_is_named_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDRUN_KERNEL_SET", "none-such")
    with pytest.raises(UsageError, match=r"^PAGEDRUN_KERNEL_SET: .*'none-such'"):
        choose_kernel_set("auto")
