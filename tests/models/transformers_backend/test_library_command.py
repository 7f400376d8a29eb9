"""The command with `--model-impl transformers`: what plan, report and manifest say."""

import json
from pathlib import Path

import pytest

from tests.conftest import MakeModel
from tests.models.transformers_backend.library_models import LIBRARY, PLAIN
from tests.support.command import Command
from tests.support.families import save_tiny
from tests.support.jsonl import read_jsonl, write_jsonl

RUN = ("--device", "cpu", "--dtype", "float32", "--max-tokens", "5", "--ignore-eos")
LIBRARY_RUN = ("--model-impl", "transformers", *RUN)


def write_rows(folder: Path) -> Path:
    shared = [7 * i % 256 for i in range(40)]
    rows = [{"prompt_token_ids": [*shared, 9 + i]} for i in range(7)]
    return write_jsonl(folder / "rows.jsonl", rows)


def answers(out: Path) -> list[object]:
    return [(row["index"], row["outputs"]) for row in read_jsonl(out)]


def test_plan_report_and_manifest_say_who_computes(pagedrun: Command, tmp_path: Path) -> None:
    save_tiny(LIBRARY["cohere"], tmp_path)
    rows, out = write_rows(tmp_path), tmp_path / "out.jsonl"
    flags = ("--model", tmp_path, *LIBRARY_RUN, "--max-num-seqs", "4")
    weights = (tmp_path / "model.safetensors").rename(tmp_path / "away")
    plan_flags = (each for each in flags if each != "--ignore-eos")
    status, plan, err = pagedrun("plan", rows, *plan_flags, "--json", "--quiet")
    assert status == 0, f"a plan needs no weights: {err}"
    told = json.loads(plan)
    weights.rename(tmp_path / "model.safetensors")
    status, _, err = pagedrun("generate", rows, "-o", out, *flags, "--report-view", "full")
    assert status == 0, err
    assert "rows kept their bytes" in err
    report = json.loads((tmp_path / "out.jsonl.report.json").read_text())
    manifest = json.loads((tmp_path / "out.jsonl.run.json").read_text())
    assert told["config"]["model_impl"] == report["config"]["model_impl"] == "transformers"
    for name in ("prompt", "cached", "computed", "generated"):
        assert told["tokens"][name] == report["tokens"][name], name
    assert report["tokens"]["cached"] > 0
    for name in ("num_blocks", "peak_blocks", "bytes_per_token", "pool_bytes"):
        assert told["kv"][name] == report["kv"][name], name
    computed_by = report["library"]["computed_by"]
    assert manifest["arithmetic"]["computed_by"].startswith(computed_by)
    assert computed_by in err


@pytest.mark.parametrize("first", ["transformers", "pagedrun"])
def test_rows_of_other_code_are_not_gone_on_with(
    first: str, pagedrun: Command, make_model: MakeModel, tmp_path: Path
) -> None:
    """A Llama runs by both, with other last bits."""
    rows, out = write_rows(tmp_path), tmp_path / "out.jsonl"
    flags = ("generate", rows, "-o", out, "--model", make_model("llama", "both"), *RUN)
    other = {"transformers": "auto", "pagedrun": "transformers"}[first]
    assert pagedrun(*flags, "--model-impl", first)[0] == 0
    lines, whole = out.read_bytes().splitlines(keepends=True), answers(out)
    out.write_bytes(b"".join(lines[:5]))
    status, _, err = pagedrun(*flags, "--resume", "--model-impl", other)
    assert status == 2
    sentence = " ".join(err.split())
    assert "would be computed differently: computed by was" in sentence
    way_out = "transformers" if first == "transformers" else "auto"  # which is pagedrun
    assert f"pass --model-impl {way_out}, or pass --overwrite" in sentence
    status, _, err = pagedrun(*flags, "--resume", "--model-impl", way_out)
    assert status == 0, err
    assert answers(out) == whole


def test_a_type_without_code_of_pagedrun_names_the_flag(pagedrun: Command, tmp_path: Path) -> None:
    save_tiny(LIBRARY["phi"], tmp_path)
    rows = write_rows(tmp_path)
    for command in (("plan", rows), ("generate", rows, "-o", tmp_path / "out.jsonl")):
        status, _, err = pagedrun(*command, "--model", tmp_path)
        assert status == 2
        assert "--model-impl transformers" in " ".join(err.split())
    assert not (tmp_path / "out.jsonl").exists()


def test_models_without_paged_memory_say_what_is_not_shared(
    pagedrun: Command, tmp_path: Path
) -> None:
    save_tiny(PLAIN["falcon_h1"], tmp_path)
    rows, out = write_rows(tmp_path), tmp_path / "out.jsonl"
    flags = ("--model", tmp_path, *LIBRARY_RUN, "--max-num-seqs", "4", "--temperature", "1")
    weights = (tmp_path / "model.safetensors").rename(tmp_path / "away")
    plan_flags = (each for each in flags if each != "--ignore-eos")
    status, plan, said_by_plan = pagedrun("plan", rows, *plan_flags, "--json")
    assert status == 0, said_by_plan
    told = json.loads(plan)
    weights.rename(tmp_path / "model.safetensors")
    status, _, err = pagedrun("generate", rows, "-o", out, *flags, "--report-view", "full")
    assert status == 0, err
    for text in (said_by_plan, err):
        sentence = " ".join(text.split())
        assert "Transformers computes this falcon_h1 sequence by sequence" in sentence
        assert "no prefix is shared" in sentence
        assert "Caches of Transformers" in sentence
    report = json.loads((tmp_path / "out.jsonl.report.json").read_text())
    assert told["library"].items() <= report["library"].items()
    assert told["config"]["prefix_caching"] is report["config"]["prefix_caching"] is False
    for name in ("prompt", "cached", "computed", "generated"):
        assert told["tokens"][name] == report["tokens"][name], name
    assert report["tokens"]["cached"] == 0
    assert told["states"] == report["states"]
    whole, lines = answers(out), out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:5]))
    others = ("--resume", "--max-num-seqs", "2", "--max-num-batched-tokens", "16")
    status, _, err = pagedrun("generate", rows, "-o", out, *flags, *others)
    assert status == 0, err
    assert answers(out) == whole
