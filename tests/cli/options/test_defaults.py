"""`PAGEDRUN_MODEL` and the configuration file: what they set, for whom, and what they may not."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli.bench.throughput import throughput_bench
from pagedrun.cli.options.job_flags import job_config
from pagedrun.cli.options.settings import (
    NOT_IN_CONFIG_FILE,
    NOT_IN_RECIPES,
    Settings,
    config_settings,
)
from pagedrun.paged.job.config import JobConfig
from pagedrun.recipes.demo import demo_model_folder
from pagedrun.recipes.recipe import config_path
from tests.support.command import Command
from tests.support.jsonl import read_jsonl

WriteConfig = Callable[[str], Path]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteConfig:
    """Write the configuration file; return its path. The test works in a folder with rows."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    Path("rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')

    def write(text: str) -> Path:
        path = tmp_path / "xdg" / "pagedrun" / "config.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Another folder with the bundled model."""
    return str(shutil.copytree(demo_model_folder(), tmp_path / "copy"))


def job(**flags: Any) -> JobConfig:
    return job_config(Settings.of({"input_name": "rows.jsonl", **flags}))


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("rows.out.jsonl.run.json").read_text())
    return found


# ── Which one counts ────────────────────────────────────────────────────────────────────────────


def test_a_flag_counts_most_then_recipe_environment_and_file(
    config: WriteConfig, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {}
    for source in ("config file", "environment", "recipe", "flag"):
        folders[source] = tmp_path / source
        shutil.copytree(model, folders[source])

    def effective(**flags: Any) -> tuple[Path, str]:
        found = job(**flags)
        return found.engine.model, found.origins["model"]

    config(f"model: {folders['config file']}\n")
    assert effective() == (folders["config file"], "config file")
    monkeypatch.setenv("PAGEDRUN_MODEL", str(folders["environment"]))
    assert effective() == (folders["environment"], "environment")
    Path("r.yaml").write_text(f"model: {folders['recipe']}\n")
    assert effective(recipe="r.yaml") == (folders["recipe"], "recipe")
    flag = str(folders["flag"])
    assert effective(recipe="r.yaml", model=flag) == (folders["flag"], "flag")


def test_each_setting_is_from_the_highest_that_has_it(config: WriteConfig) -> None:
    config("model: demo\nmax_tokens: 5\ntemperature: 0.5\nseed: 7\n")
    Path("r.yaml").write_text("temperature: 0.25\nmax_tokens: 6\n")
    found = job(recipe="r.yaml", max_tokens=8)
    sampling = found.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (8, 0.25, 7)
    names = ("max_tokens", "temperature", "seed")
    assert [found.origins[name] for name in names] == ["flag", "recipe", "config file"]
    assert "top_p" not in found.origins  # the default


@pytest.mark.parametrize(
    ("text", "flags", "gone"),
    [
        (
            "model: org/a\nrevision: v1\ntokenizer: org/b",
            {"model": "demo"},
            {"revision", "tokenizer"},
        ),
        ("model: demo\nprompt_field: a", {"prompt_template": "{{ b }}"}, {"prompt_field"}),
        ("model: demo\nregex: a+", {"choice": ["a"]}, {"regex"}),
        ("model: demo\nnum_blocks: 9", {"kv_cache_memory_bytes": 2**20}, {"num_blocks"}),
    ],
    ids=["model", "prompt_field", "regex", "num_blocks"],
)
def test_what_goes_with_it_goes(
    config: WriteConfig, text: str, flags: dict[str, Any], gone: set[str]
) -> None:
    config(text)
    settings = Settings.of({"input_name": "rows.jsonl", **flags})
    assert not gone & settings.given.keys()
    assert not gone & settings.origins.keys()
    job_config(settings)


def test_the_environment_takes_the_model_of_the_file_with_its_revision(
    config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config("model: org/a\nrevision: v1\n")
    monkeypatch.setenv("PAGEDRUN_MODEL", "demo")
    assert job().engine.model.samefile(demo_model_folder())


def test_an_empty_variable_and_a_file_of_comments_say_nothing(
    config: WriteConfig, pagedrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    config("# model: demo\n")
    monkeypatch.setenv("PAGEDRUN_MODEL", "")
    status, _, err = pagedrun("plan", "rows.jsonl")
    assert status == 2
    assert err.startswith("Error: --model is missing")
    assert "PAGEDRUN_MODEL" in err


def test_the_file_is_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    default = tmp_path / ".config" / "pagedrun" / "config.yaml"
    for base in ("", "relative/path"):  # which the specification has ignored
        monkeypatch.setenv("XDG_CONFIG_HOME", base)
        assert config_path() == default
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert config_path() == default
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/xdg")
    assert config_path() == Path("/etc/xdg/pagedrun/config.yaml")


def test_paths_count_from_the_folder_of_the_file(config: WriteConfig) -> None:
    path = config('model: demo\nprefix_store: store\nsystem: "@system.txt"\n')
    (path.parent / "system.txt").write_text("Be brief.\n")
    found = job()
    assert found.engine.prefix_store == path.parent / "store"
    assert found.prompts.system == "Be brief."


def test_no_test_sees_what_the_developer_has(no_defaults_of_the_developer: Path) -> None:
    path = config_path()
    assert path is not None
    assert path.is_relative_to(no_defaults_of_the_developer)
    assert not path.exists()


# ── What is refused ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "seed: 1\nmax_token: 5",
            "max_token in {} line 2: no such setting; did you mean max_tokens?",
        ),
        ("max-tokens: 5", "max-tokens in {} line 1: no such setting; did you mean max_tokens?"),
        ("description: x", "description in {} line 1: no such setting"),  # of a recipe
        ("max_tokens: many", "max_tokens in {} line 1 is 'many'; it must be an integer"),
        ("model: demo\nmax_tokens: 0", "max_tokens ({} line 2) must be an integer"),
        ("model: demo\ntop_p: 3", "top_p ({} line 2) must be a number"),
        ("model: ./gone", "model ({} line 1): "),
        (
            "model: demo\nprefix_store: s\nprefix_caching: no",
            "prefix_store ({} line 2) needs prefix",
        ),
        ("- a", "{}: it must be a mapping of settings"),
        ("a: [", "{} line 1: not valid YAML"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_key(
    config: WriteConfig, pagedrun: Command, text: str, told: str
) -> None:
    path = config(text)
    status, out, err = pagedrun("plan", "rows.jsonl", "--quiet")
    assert (status, out) == (2, "")
    assert err.startswith(f"Error: {told.format(path)}")


def test_a_variable_is_named(
    config: WriteConfig, pagedrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDRUN_MODEL", "./gone")
    for command in (["generate", "rows.jsonl"], ["ask", "Why?"], ["warmup"]):
        status, _, err = pagedrun(*command, "--quiet")
        assert status == 2
        assert err.startswith("Error: PAGEDRUN_MODEL: ./gone: no such folder")


@pytest.mark.parametrize("name", NOT_IN_CONFIG_FILE)
def test_what_is_about_one_run_is_no_default(
    config: WriteConfig, pagedrun: Command, name: str
) -> None:
    path = config(f"{name}: true")
    status, _, err = pagedrun("generate", "rows.jsonl", "--model", "demo")
    assert status == 2
    assert err.startswith(f"Error: {name} in {path} line 1: cannot be set in a configuration file")


def test_all_that_recipes_refuse_is_refused_too() -> None:
    refused = {name for name, each in config_settings().items() if each.refusal is not None}
    assert refused == set(NOT_IN_CONFIG_FILE) > set(NOT_IN_RECIPES)


def test_a_file_that_cannot_be_read_is_named(config: WriteConfig, pagedrun: Command) -> None:
    path = config("")
    path.unlink()
    path.mkdir()
    status, _, err = pagedrun("plan", "rows.jsonl", "--model", "demo")
    assert (status, err.startswith(f"Error: {path}: the file cannot be read")) == (2, True)


# ── Whom they reach, and what is kept of them ───────────────────────────────────────────────────


def test_the_manifest_says_where_each_value_is_from(
    config: WriteConfig, pagedrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config("max_tokens: 3\n")
    monkeypatch.setenv("PAGEDRUN_MODEL", "demo")
    assert pagedrun("generate", "rows.jsonl", "--quiet")[0] == 0
    parameters = manifest()["parameters"]
    assert parameters["max_tokens"] == {"value": 3, "origin": "config file"}
    assert parameters["model"]["origin"] == "environment"
    assert manifest()["defaults"] == {
        "config_path": str(path),
        "config_text": "max_tokens: 3\n",
        "environment": {"PAGEDRUN_MODEL": "demo"},
    }
    assert {row["usage"]["completion_tokens"] for row in read_jsonl(Path("rows.out.jsonl"))} == {3}


@pytest.mark.parametrize("now", ["max_tokens: 9\nsystem: Be loud.\n", "max_tokens: [\n", None])
def test_a_resumed_run_keeps_its_own(
    config: WriteConfig, pagedrun: Command, monkeypatch: pytest.MonkeyPatch, now: str | None
) -> None:
    """Whatever has become of the file and of the variable since."""
    path = config("max_tokens: 3\nstop: ['zz']\n")
    monkeypatch.setenv("PAGEDRUN_MODEL", "demo")
    assert pagedrun("generate", "rows.jsonl", "--quiet")[0] == 0
    output = Path("rows.out.jsonl")
    whole = output.read_bytes()
    output.write_bytes(whole.splitlines(keepends=True)[0])
    monkeypatch.delenv("PAGEDRUN_MODEL")
    path.unlink() if now is None else config(now)
    status, _, err = pagedrun("generate", "rows.jsonl", "--quiet", "--resume")
    assert (status, err) == (0, "")
    assert output.read_bytes() == whole
    assert manifest()["defaults"]["config_text"] == "max_tokens: 3\nstop: ['zz']\n"
    assert manifest()["parameters"]["max_tokens"]["origin"] == "config file"


def test_a_run_without_defaults_is_resumed_without(config: WriteConfig, pagedrun: Command) -> None:
    command = ("generate", "rows.jsonl", "--model", "demo", "--max-tokens", 3, "--quiet")
    assert pagedrun(*command)[0] == 0
    config("temperature: 1.5\nsystem: Be loud.\n")
    assert pagedrun(*command, "--resume")[0] == 0
    assert manifest()["parameters"]["temperature"] == {"value": 0.0, "origin": "default"}


def test_show_and_ask_and_plan_have_them_too(
    config: WriteConfig, pagedrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    config("model: demo\nmax_tokens: 3\nprompt_field: prompt\n")
    _, out, _ = pagedrun("show", "rows.jsonl", "--json", "--quiet")
    assert json.loads(out)["sampling"]["max_tokens"] == {"value": 3, "origin": "config file"}
    status, out, err = pagedrun("plan", "rows.jsonl", "--json", "--quiet")
    assert (status, err) == (0, "")
    assert (
        json.loads(out)["tokens"]["generated_at_most"] == 6 if "generated_at_most" in out else out
    )
    status, out, _ = pagedrun("ask", "Why?", "--json", "--quiet")  # which has no rows with fields
    assert (status, json.loads(out)["usage"]["completion_tokens"]) == (0, 3)
    Path("r.yaml").write_text("prompt_field: prompt\n")
    assert pagedrun("ask", "Why?", "--recipe", "r.yaml", "--quiet")[0] == 2


def test_bench_takes_what_it_has_flags_for(
    config: WriteConfig, model: str, pagedrun: Command
) -> None:
    config(f"model: {model}\nblock_size: 32\ntemperature: 1.0\n")
    known = {"shape", "layers", "model", "revision", "block_size", "max_num_seqs"}
    bench = throughput_bench(Settings.of({}, known).given)
    assert bench.model.name == Path(model).name
    assert bench.flags == {"block_size": 32, "speculate": "off"}
    shape = throughput_bench(Settings.of({"shape": "qwen3-0.6b", "layers": 1}, known).given)
    assert shape.model.name != Path(model).name
    path = config("block_size: 0\n")
    status, _, err = pagedrun("bench", "throughput", "--layers", "1", "--rows", "1")
    assert (status, f"block_size ({path} line 1)" in err) == (2, True)


def test_warmup_takes_the_model(
    config: WriteConfig, pagedrun: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config("dtype: float32\ntemperature: 1.0\n")
    monkeypatch.setenv("PAGEDRUN_MODEL", model)
    status, out, _ = pagedrun("warmup", "--json", "--quiet")
    done = json.loads(out)
    assert (status, done["model"], done["dtypes"]) == (0, model, ["float32"])


def test_doctor_shows_them(
    config: WriteConfig, pagedrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = config("max_tokens: 3\nprefix_store: store\n")
    monkeypatch.setenv("PAGEDRUN_MODEL", "org/name")
    status, out, err = pagedrun("doctor", "--json")
    assert status == 0
    assert json.loads(out)["defaults"] == {
        "path": str(path),
        "there": True,
        "values": {"max_tokens": 3, "prefix_store": str(path.parent / "store")},
        "environment": {"PAGEDRUN_MODEL": "org/name"},
    }
    assert "org/name" in err
    assert "max_tokens" in err
    config("max_token: 3\n")
    status, out, err = pagedrun("doctor", "--json", "--quiet")
    (problem,) = json.loads(out)["problems"]
    assert status == 1
    assert problem.startswith(f"max_token in {path} line 1: no such setting")
    assert err.startswith("Broken: ")


def test_the_texts_of_the_file_are_known_when_a_run_is_inspected(
    config: WriteConfig, pagedrun: Command
) -> None:
    config("model: demo\nmax_tokens: 2\nsystem: Be very brief.\n")
    assert pagedrun("generate", "rows.jsonl", "--quiet")[0] == 0
    status, out, _ = pagedrun(
        "inspect-cache", "rows.out.jsonl", "--show-text", "--row", "0", "--json", "--quiet"
    )
    found = json.loads(out)
    assert (status, found["notes"]) == (0, [])
    assert "Be very brief." in found["rows"][0]["text"]
