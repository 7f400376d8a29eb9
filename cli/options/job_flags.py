"""Conversion of settings to a `JobConfig`, and to the `show` command of the same prompts.

Settings without a value keep their default. Imported when a command runs.
"""

import shlex
import sys
from pathlib import Path

from pagedrun.cli.options.generate_flags import SHOW, Display, GenerationDefaults, RunOptions
from pagedrun.cli.options.reading import values_of
from pagedrun.cli.options.settings import VARIABLES, Settings, inputs_of, output_of
from pagedrun.paged.job.config import STDOUT, JobConfig, RecipeFile
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.models.generation_config import GenerationConfig
from pagedrun.paged.models.hub import DEMO, cached_models, resolve_model
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig
from pagedrun.paged.values.errors import UsageError, as_flag, option
from pagedrun.paged.values.flags import FlagField, Panel
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder, demo_prompts_path

_MAX_NAMED = 5  # models


def job_config(settings: Settings) -> JobConfig:
    """Return the job configuration of flags, recipe and the user's defaults.

    Raises `UsageError` for an invalid value, and for mutually exclusive flags.
    """
    given = settings.given
    inputs = inputs_of(given)
    output = output_of(given)
    if output == STDOUT and settings.read(Display).json_report:
        raise UsageError(
            f"{option('json')} and -o - both write to stdout; use {option('report')} PATH for one "
            "of them"
        )
    if given.get("resume") and given.get("overwrite"):
        raise UsageError(f"{option('resume')} and {option('overwrite')} exclude each other")
    retries = given.get("retry_errors") and settings.origins["retry_errors"] == "flag"
    if retries and not given.get("resume"):  # in a recipe it applies to resumed runs only
        raise UsageError(f"{option('retry_errors')} goes with {option('resume')}")
    if "prompt_template" in given and "prompt_field" in given:
        raise UsageError(
            f"{option('prompt_template')} and {option('prompt_field')} exclude each other"
        )
    with settings.blamed("model"):
        model = _model_folder(settings)
    by_model = model_sampling(settings, model)
    return settings.read(
        JobConfig,
        input=inputs[0],
        more_inputs=inputs[1:],
        output=output,
        engine=EngineConfig.fitting(**values_of(EngineConfig, given, {"model"}), model=model),
        replicas=_replicas(settings),
        tokenizer=_tokenizer_folder(settings),
        sampling=_sampling(settings, by_model),
        prompts=settings.read(PromptConfig),
        limit=_limit(settings),
        origins={**dict.fromkeys(by_model.values, "model"), **settings.origins},
        recipe=_recipe_file(settings),
        defaults=settings.defaults.saved,
    )


def model_sampling(settings: Settings, model: Path) -> GenerationConfig:
    """Return the model's generation config, empty unless `--generation-config auto`."""
    if settings.read(RunOptions).generation_config is not GenerationDefaults.AUTO:
        return GenerationConfig()
    return GenerationConfig.from_folder(model)


def warn_of_model(settings: Settings, config: JobConfig, listener: JobListener) -> None:
    """Warn of settings in generation_config.json that are not applied."""
    names = model_sampling(settings, config.engine.model).not_taken
    if names:
        listener.on_warning(f"generation_config.json: not applied: {', '.join(names)}")


def _limit(settings: Settings) -> int | None:
    asked = settings.given.get("limit")
    return min(asked, sys.maxsize) if isinstance(asked, int) else None  # above the rows of any file


def _recipe_file(settings: Settings) -> RecipeFile | None:
    recipe = settings.recipe
    return None if recipe is None else RecipeFile(str(recipe.path), recipe.sha256)


def _model_folder(settings: Settings) -> Path:
    name, revision = settings.given.get("model"), settings.read(RunOptions).revision
    if name is not None:
        return resolve_model(str(name), revision)
    if revision is not None:
        raise UsageError(f"{option('revision')} needs {option('model')} with a name on the hub")
    inputs = inputs_of(settings.given)
    if len(inputs) == 1 and _is_copy(Path(inputs[0]), demo_prompts_path()):
        return demo_model_folder()
    raise UsageError(_which_model())


def _is_copy(path: Path, original: Path) -> bool:
    """Return whether a regular file has the bytes of `original`."""
    try:
        is_like = path.is_file() and path.stat().st_size == original.stat().st_size
        return is_like and path.read_bytes() == original.read_bytes()
    except OSError:
        return False  # the reader of the rows reports it


def _which_model() -> str:
    """Return the message about a missing model."""
    cached = cached_models()
    names = ", ".join(cached[:_MAX_NAMED]) + (", …" if len(cached) > _MAX_NAMED else "")
    here = f" In the hub's cache are {names}." if cached else ""
    return (
        f"{option('model')} is missing: pass a model folder, a name on the hub such as "
        f"Qwen/Qwen3-0.6B, a .gguf file, or {DEMO} for the bundled model, which knows one staff "
        f"directory and nothing else; {VARIABLES['model']}=NAME names one for all runs.{here}"
    )


def _tokenizer_folder(settings: Settings) -> Path | None:
    name = settings.given.get("tokenizer")
    with settings.blamed("tokenizer"):
        return None if name is None else resolve_model(str(name))


def _replicas(settings: Settings) -> ReplicaConfig:
    """Return the replica settings; flags that need `--replicas` are refused without it."""
    config = settings.read(ReplicaConfig)
    config.refuse_alone({name for name, of in settings.origins.items() if of == "flag"})
    return config


def _sampling(settings: Settings, by_model: GenerationConfig) -> SamplingParams:
    return SamplingParams(**{**by_model.values, **values_of(SamplingParams, settings.given)})


def show_command(settings: Settings) -> str:
    """Return the `show` command line, with the typed flags that affect the prompt."""
    typed = settings.given["input_name"]
    inputs = typed if isinstance(typed, list) else [typed]
    words = ["pagedrun", "show", *(str(each) for each in inputs), "--row", "0"]
    for each in SHOW:
        is_typed = settings.origins.get(each.name) == "flag" and not each.flag.is_argument
        if is_typed and each.flag.panel is not Panel.DISPLAY:
            words += _typed(each, settings.given[each.name])
    return shlex.join(words)


def _typed(field: FlagField, value: object) -> list[str]:
    if isinstance(value, bool):
        return [as_flag(field.name if value else f"{field.name}=False")]
    values = value if isinstance(value, list) else [value]
    return [word for each in values for word in (as_flag(field.name), str(each))]
