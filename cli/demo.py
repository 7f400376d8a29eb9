"""`pagedrun demo`: run of the bundled prompts with the bundled model."""

from dataclasses import replace

import typer

from pagedrun.cli import exits
from pagedrun.cli.generate import run
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE

HELP = """Answer the bundled prompts with the bundled model, and show the memory report.

No model, network or checkout is needed. The answers are written to demo.out.jsonl in the \
current folder; if that file exists, --overwrite replaces it. Recipes, PAGEDRUN_MODEL and the \
configuration file have no effect.

Examples:

  pagedrun demo
  pagedrun demo --overwrite --report-view full
  pagedrun demo -o answers.jsonl --html memory.html

Exit status: as for generate: 0 all rows ok, 2 refused, for example for an existing output.
"""
OUTPUT = "demo.out.jsonl"

(_OUTPUT,) = GENERATE.only("output")
FLAGS = Flags([replace(_OUTPUT, flag=replace(_OUTPUT.flag, default=OUTPUT))]) + GENERATE.only(
    *("out_dir", "overwrite", "resume", "limit", "report", "html"),
    *("device", "dtype", "progress", "report_view", "json_report", "quiet"),
)


def _demo(context: typer.Context, given: TypedValues) -> None:
    """Answer the bundled prompts with the bundled model."""
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.settings import Settings
    from pagedrun.paged.models.hub import DEMO
    from pagedrun.recipes.demo import demo_prompts_path

    guard = context.obj
    with exits.boundary(guard):
        known = {"input_name": [str(demo_prompts_path())], "model": DEMO, "output": OUTPUT}
        settings = Settings({**known, **given})
        with settings.named():
            raise typer.Exit(run(settings, guard))


demo = FLAGS.command(_demo)
