"""Texts of `inspect-cache --show-text`: the beginnings of rows and prefixes."""

from collections.abc import Mapping
from pathlib import Path

from pagedrun.cli.options.flags import TypedValues
from pagedrun.cli.options.reading import text_or_file
from pagedrun.cli.options.settings import CONFIG_FILE, Defaults, config_settings, recipe_settings
from pagedrun.cli.report.inspection import ShownInspection
from pagedrun.paged.job.output.manifest import read_manifest
from pagedrun.paged.job.output.side_files import RunFiles
from pagedrun.paged.job.prompt_texts import GivenTexts, PromptTexts, TextsUnavailable
from pagedrun.paged.values.errors import UsageError, as_flag
from pagedrun.recipes.recipe import Recipe

NAMES = ("system", "prompt_template", "chat_template")


def add_texts(found: ShownInspection, files: RunFiles, given: TypedValues) -> None:
    """Add a `text` to the prefixes and rows in `found`, or a note if the input is unavailable."""
    prefixes = [] if found["prefixes"] is None else found["prefixes"]["top"]
    rows = {each["row"] for each in (*prefixes, *found["rows"])}
    try:
        if files.manifest is None:
            raise TextsUnavailable("no manifest (OUT.run.json) says which input the run read")
        prompts = PromptTexts.read(files.manifest, rows, _given_texts(files.manifest, given))
    except TextsUnavailable as error:
        found["notes"].append(f"Warning: no texts are shown: {error.shown(as_flag)}")
        return
    for prefix in prefixes:
        prefix["text"] = prompts.between(prefix["row"], prefix["start"], prefix["tokens"])
    for row in found["rows"]:
        row["text"] = prompts.beginning(row["row"])


def _given_texts(manifest: Path, given: TypedValues) -> GivenTexts:
    """Return the texts of the run from flags, else from its recipe and configuration file."""
    values = {**_saved_texts(manifest), **given}
    texts = {name: values.get(name) for name in NAMES}
    return GivenTexts(
        **{
            name: text_or_file(None if text is None else str(text), name)
            for name, text in texts.items()
        }
    )


def _saved_texts(manifest: Path) -> dict[str, object]:
    """Return the texts of the run from its recipe, if unchanged, and its configuration file."""
    try:
        saved = read_manifest(manifest)
        sources: dict[str, Mapping[str, object]] = {}
        file = Defaults.of_run(saved.defaults, config_settings()).file
        if file is not None:
            sources[CONFIG_FILE] = file.values
        if saved.recipe is not None:
            recipe = Recipe.read(Path(saved.recipe.path), recipe_settings())
            if recipe.sha256 == saved.recipe.sha256:
                sources["recipe"] = recipe.values
        origins = {name: saved.parameters[name].origin for name in NAMES}
        return {
            name: sources[origin][name] for name, origin in origins.items() if origin in sources
        }
    except (UsageError, KeyError, ValueError):
        return {}
