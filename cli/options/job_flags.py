"""From settings as given to a `JobConfig`; one that is not given keeps its default."""

import sys
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from pagedrun.cli.options.choices import GenerationDefaults
from pagedrun.cli.options.settings import Settings
from pagedrun.paged.job.config import DEFAULT_STALL_TIMEOUT, STDOUT, JobConfig
from pagedrun.paged.job.inputs.reader import input_stem
from pagedrun.paged.job.listener import JobListener
from pagedrun.paged.job.prompts.overlong import Overlong
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.job.prompts.template import PromptTemplate
from pagedrun.paged.models.generation_config import GenerationConfig
from pagedrun.paged.models.hub import resolve_model
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.option_names import option
from pagedrun.paged.values.sampling import FIELD_NAMES, SamplingParams
from pagedrun.recipes.demo import demo_model_folder

OUTPUT_SUFFIX = ".out.jsonl"
_ENGINE_FIELDS = frozenset(field.name for field in fields(EngineConfig)) - {"model"}


def job_config(settings: Settings) -> JobConfig:
    """Return the job that flags and recipe describe.

    Raises `UsageError` for a value that cannot be used, and for flags that exclude each other.
    """
    given = settings.values
    output = given.get("output") or default_output(given["input_name"])
    if output == STDOUT and given.get("json_report"):
        raise UsageError(
            f"{option('json')} and -o - both write to stdout; use {option('report')} PATH for one "
            "of them"
        )
    if given.get("resume") and given.get("overwrite"):
        raise UsageError(f"{option('resume')} and {option('overwrite')} exclude each other")
    retries = given.get("retry_errors") and settings.origins["retry_errors"] == "flag"
    if retries and not given.get("resume"):  # a recipe says it for whenever there is a resume
        raise UsageError(f"{option('retry_errors')} goes with {option('resume')}")
    engine = {name: _plain(value) for name, value in given.items() if name in _ENGINE_FIELDS}
    with settings.blamed("model"):
        model = _model_folder(given)
    with settings.blamed("tokenizer"):
        tokenizer = resolve_model(given["tokenizer"]) if "tokenizer" in given else None
    by_model = model_sampling(given, model).values
    return JobConfig(
        input=given["input_name"],
        output=output,
        engine=EngineConfig(model=model, **engine),
        tokenizer=tokenizer,
        chat_template=text_or_file(given.get("chat_template"), "chat_template"),
        sampling=_sampling({**by_model, **given}),
        prompts=_prompts(given),
        limit=_limit(given.get("limit")),
        overwrite=given.get("overwrite", False),
        resume=given.get("resume", False),
        retry_errors=given.get("retry_errors", False),
        ordered=given.get("ordered", False),
        strict=given.get("strict", False),
        on_overlong=Overlong(given.get("on_overlong", Overlong.ERROR)),
        stall_timeout=given.get("stall_timeout", DEFAULT_STALL_TIMEOUT),
        report=given.get("report"),
        origins={**dict.fromkeys(by_model, "model"), **settings.origins},
        recipe=_recipe_file(settings),
    )


def _limit(asked: int | None) -> int | None:
    if asked is not None and asked < 1:
        raise UsageError(f"{option('limit')} is {asked}; it must be at least 1")
    return None if asked is None else min(asked, sys.maxsize)


def model_sampling(given: Mapping[str, Any], model: Path) -> GenerationConfig:
    """Return what the model's authors advise, if that is asked for."""
    if given.get("generation_config") != GenerationDefaults.AUTO:
        return GenerationConfig()
    return GenerationConfig.from_folder(model)


def warn_of_model(settings: Settings, config: JobConfig, listener: JobListener) -> None:
    """Tell what the model's generation_config.json asks for and does not get."""
    names = model_sampling(settings.values, config.engine.model).not_taken
    if names:
        listener.on_warning(f"generation_config.json: not applied: {', '.join(names)}")


def default_output(input_name: str) -> str:
    """Return where answers go if the user does not say: the input's stem, in this folder."""
    return f"{input_stem(input_name)}{OUTPUT_SUFFIX}"


def text_or_file(value: str | None, name: str) -> str | None:
    """Return `value`, or what is in the file that `@path` names, without its last newline.

    Raises `UsageError`, of the option `name`, if the file cannot be read.
    """
    if value is None or not value.startswith("@"):
        return value
    path = value[1:]
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{option(name)} {value}: the file is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{option(name)} {value}: the file cannot be read ({reason})") from error
    return text.removesuffix("\n")


def _recipe_file(settings: Settings) -> dict[str, str] | None:
    recipe = settings.recipe
    return None if recipe is None else {"path": str(recipe.path), "sha256": recipe.sha256}


def _model_folder(given: Mapping[str, Any]) -> Path:
    if "model" not in given:
        if "revision" in given:
            raise UsageError(f"{option('revision')} needs {option('model')} with a name on the hub")
        return demo_model_folder()
    return resolve_model(given["model"], given.get("revision"))


def _sampling(given: Mapping[str, Any]) -> SamplingParams:
    values = {name: value for name, value in given.items() if name in FIELD_NAMES}
    if "stop_token_ids" in values:
        values["stop_token_ids"] = _token_ids(values["stop_token_ids"])
    try:
        return SamplingParams().override(values)
    except RowError as error:
        name = error.param or ""
        raise UsageError(option(name) + error.marked.removeprefix(name)) from error


def _token_ids(texts: list[str]) -> list[int]:
    words = [word.strip() for text in texts for word in text.split(",")]
    if not all(word.isdecimal() and word.isascii() and len(word) < 10 for word in words):
        raise UsageError(
            f"{option('stop_token_ids')} takes token ids, such as {option('stop_token_ids')} "
            "2,50256"
        )
    return [int(word) for word in words]


def _prompts(given: Mapping[str, Any]) -> PromptConfig:
    if "prompt_template" in given and "prompt_field" in given:
        raise UsageError(
            f"{option('prompt_template')} and {option('prompt_field')} exclude each other"
        )
    template = text_or_file(given.get("prompt_template"), "prompt_template")
    return PromptConfig(
        field=given.get("prompt_field"),
        template=PromptTemplate(template) if template is not None else None,
        system=text_or_file(given.get("system"), "system"),
    )


def _plain(value: Any) -> Any:
    """Return the word itself for a flag with a fixed set of them."""
    return value.value if isinstance(value, StrEnum) else value
