"""Flags, recipe and the model's own settings: which wins, and what is said of each."""

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli.generate import generate
from pagedrun.cli.options.job_flags import job_config
from pagedrun.cli.options.settings import NOT_IN_RECIPES, Settings, recipe_settings
from pagedrun.paged.job.config import JobConfig, RecipeFile
from pagedrun.paged.job.job import JobResult
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder
from pagedrun.recipes.recipe import Kind, Setting
from tests.support.command import Command

ALLOWED = [setting for setting in recipe_settings().values() if setting.refusal is None]
MakeSettings = Callable[..., Settings]


@pytest.fixture
def settings(tmp_path: Path) -> MakeSettings:
    """Return the settings of a recipe and flags; messages name the recipe r.yaml."""

    def make(recipe: str, **flags: Any) -> Settings:
        path = tmp_path / "r.yaml"
        path.write_text(recipe)
        named = {} if re.search("^model:", recipe, re.MULTILINE) else {"model": "demo"}
        return Settings.of({"input_name": "in.jsonl", "recipe": str(path), **named, **flags})

    return make


def refusal_of(settings: Settings) -> str:
    with pytest.raises(UsageError) as caught, settings.named():
        job_config(settings)
    return str(caught.value)


def test_every_flag_of_generate_is_a_setting_or_refused_for_a_reason() -> None:
    flags = set(inspect.signature(generate).parameters) - {"context"}
    assert set(recipe_settings()) == flags
    assert set(NOT_IN_RECIPES) < flags
    assert all(len(reason) > 10 for reason in NOT_IN_RECIPES.values())


# Those whose rule allows no value of the many.
EXAMPLES = {
    "json_schema": "'{}'",
    "delimiter": "';'",
    "encoding": "cp1252",
    "logprobs": "5",
    "prompt_logprobs": "5",
    "beam_width": "4",
    "reasoning_tags": "<a>,</a>",
    "chat_template_kwargs": "{enable_thinking: false}",
}


def example(setting: Setting, folder: Path) -> str:
    """Return a line that sets the setting to something that is not its default."""
    if setting.kind is Kind.MODEL:
        return f"{setting.name}: {folder}"
    if setting.name in EXAMPLES:
        return f"{setting.name}: {EXAMPLES[setting.name]}"
    default = getattr(EngineConfig(Path()), setting.name, None)
    default = getattr(SamplingParams(), setting.name, default)
    if setting.words:
        return f"{setting.name}: {[word for word in setting.words if word != default][-1]}"
    if setting.kind is Kind.BOOLEAN:
        return f"{setting.name}: {'false' if default is True else 'true'}"
    values = {
        Kind.INTEGER: "24",
        Kind.NUMBER: "0.25",
        Kind.TEXTS: "['7', '8']",
        Kind.JSON: "{7: -1.5}",
    }
    return f"{setting.name}: {values.get(setting.kind, '77')}"


@pytest.mark.parametrize("setting", ALLOWED, ids=lambda setting: setting.name)
def test_every_setting_of_a_recipe_takes_effect(
    setting: Setting, settings: MakeSettings, make_tokenizer: Callable[[], Path]
) -> None:
    extra = "model: org/name\n" if setting.name == "revision" else ""
    line = example(setting, make_tokenizer())
    made = settings(extra + line)
    assert made.origins[setting.name] == "recipe"
    if setting.name in ("revision", "progress", "report_view", "generation_config", "html"):
        return  # used on the way, and not part of the job
    before, after = (
        job_config(Settings({"input_name": "in.jsonl", "model": "demo"})),
        job_config(made),
    )
    changed = {
        name
        for name in JobConfig.__dataclass_fields__
        if name not in ("origins", "recipe") and getattr(before, name) != getattr(after, name)
    }
    assert len(changed) == 1, line
    assert after.origins[setting.name] == "recipe"


def value_in(config: JobConfig, name: str) -> object:
    places = [
        place
        for place in (config, config.engine, config.prompts, config.sampling, config.replicas)
        if hasattr(place, name)
    ]
    assert len(places) == 1, f"where is {name}?"
    return getattr(places[0], name)


SWITCHES = [setting.name for setting in ALLOWED if setting.kind is Kind.BOOLEAN]


@pytest.mark.parametrize("name", SWITCHES)
def test_what_a_recipe_turns_on_a_flag_turns_off(
    name: str, settings: MakeSettings, pagedrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the real command line: `--no-NAME` has to be a flag."""
    seen: list[JobConfig] = []

    def run_job(config: JobConfig, listener: object, **more: object) -> JobResult:
        seen.append(config)
        raise UsageError("seen")

    recipe = settings(f"{name}: true").recipe
    assert recipe is not None
    monkeypatch.setattr("pagedrun.paged.job.job.run_job", run_job)
    for more in ([], [f"--no-{name.replace('_', '-')}"]):
        arguments = ["generate", "in.jsonl", "--model", "demo", "--recipe", str(recipe.path), *more]
        pagedrun(*arguments)
    assert [value_in(config, name) for config in seen] == [True, False]
    assert [config.origins[name] for config in seen] == ["recipe", "flag"]


def test_a_flag_wins_over_the_recipe_and_both_are_told(settings: MakeSettings) -> None:
    made = settings("temperature: 0.5\nmax_tokens: 9\nprefix_once: false", temperature=0.0)
    config = job_config(made)
    assert (config.sampling.temperature, config.sampling.max_tokens) == (0.0, 9)
    assert config.engine.prefix_once is False
    assert config.origins["temperature"] == "flag"
    assert config.origins["max_tokens"] == config.origins["prefix_once"] == "recipe"
    assert made.recipe is not None
    assert config.recipe == RecipeFile(str(made.recipe.path), made.recipe.sha256)


def test_a_flag_takes_the_place_of_what_goes_with_it(
    settings: MakeSettings, make_tokenizer: Callable[[], Path]
) -> None:
    folder = str(make_tokenizer())
    made = settings("model: org/name\nrevision: v1\ntokenizer: org/other", model=folder)
    assert job_config(made).origins["model"] == "flag"
    assert {"revision", "tokenizer"} & set(made.given) == set()
    assert settings(f"tokenizer: {folder}", model=folder).given["tokenizer"] == folder
    prompts = job_config(settings("prompt_template: '{{ a }}'", prompt_field="b")).prompts
    assert (prompts.field, prompts.template) == ("b", None)
    sized = job_config(settings("num_blocks: 9", kv_cache_memory_bytes=2**20)).engine
    assert (sized.num_blocks, sized.kv_cache_memory_bytes) == (None, 2**20)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("n: 1\ntop_p: 2", "top_p ({} line 2) must be a number above 0 and at most 1"),
        ("block_size: 0", "block_size ({} line 1) is 0; it must be an integer of at least 1"),
        ("stop_token_ids: x", "stop_token_ids ({} line 1) takes token ids"),
        ("revision: v1", "revision ({} line 1) needs --model with a name on the hub"),
        ("model: ./gone", "model ({} line 1): "),
        ("n: 1\ntokenizer: no folder", "tokenizer ({} line 2): no folder: no such folder"),
        ("n: 1\nprompt_template: '{{ a'", "prompt_template ({} line 2), line 1: "),
        (
            "prompt_field: a\nprompt_template: b",
            "prompt_template ({} line 2) and prompt_field ({} line 1) exclude each other",
        ),
    ],
)
def test_a_bad_value_of_a_recipe_is_told_by_its_line(
    settings: MakeSettings, tmp_path: Path, recipe: str, message: str
) -> None:
    path = tmp_path / "r.yaml"
    assert refusal_of(settings(recipe)).startswith(message.replace("{}", str(path)))


def test_a_flag_that_breaks_a_recipe_is_told_with_it(
    settings: MakeSettings, tmp_path: Path
) -> None:
    told = refusal_of(settings("max_tokens: 9\nmin_tokens: 8", max_tokens=4))
    assert told == f"min_tokens ({tmp_path / 'r.yaml'} line 2) 8 exceeds --max-tokens 4"
    assert "--top-p" in refusal_of(settings("n: 1", top_p=2.0))


class TestTheModelsOwnSettings:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        folder = tmp_path / "model"
        folder.mkdir()
        advice = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}
        (folder / "generation_config.json").write_text(json.dumps(advice))
        return folder

    def test_they_are_used_when_asked_for_and_only_where_nothing_else_is_said(
        self, settings: MakeSettings, model: Path
    ) -> None:
        recipe = "generation_config: auto\ntop_p: 0.5"
        config = job_config(settings(recipe, model=str(model), top_k=3))
        sampling = config.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.5, 3)
        origins = [config.origins[name] for name in ("temperature", "top_p", "top_k")]
        assert origins == ["model", "recipe", "flag"]

    def test_they_are_not_used_unless_asked_for(self, settings: MakeSettings, model: Path) -> None:
        for recipe in ("n: 1", "generation_config: vllm"):
            config = job_config(settings(recipe, model=str(model)))
            assert config.sampling.is_greedy
            assert "temperature" not in config.origins

    def test_the_demo_has_none(self, settings: MakeSettings) -> None:
        config = job_config(settings("generation_config: auto"))
        assert config.engine.model == demo_model_folder()
        assert config.sampling.is_greedy
