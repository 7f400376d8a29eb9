"""`pagedrun plan`: from flags to a forecast, drawn on stderr or as JSON on stdout."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pagedrun.cli import exits
from pagedrun.cli.options import options

if TYPE_CHECKING:
    from pagedrun.cli.options.settings import Settings

HELP = """Say what a run of INPUT would compute, hold and share; the model's weights are not loaded.

Shows the tree of shared prefixes, what sharing saves, the KV memory over time, what fits into it, \
the block size that suits the file, and what in the prompts breaks sharing. Answers are taken to \
be as long as --max-tokens allows.

Examples:

  pagedrun plan prompts.jsonl --model ./model --max-tokens 64
  pagedrun plan rows.jsonl --prompt-template @prompt.jinja --kv-cache-memory-bytes 4GiB
  pagedrun plan rows.jsonl --recipe judge.yaml
  pagedrun plan prompts.jsonl --json --quiet | jq .tokens

Exit status: 0 planned, 1 failure, 2 refused.
"""

SimulateRows = Annotated[
    int | None,
    typer.Option(
        "--simulate-rows",
        help="Simulate the first N rows, in run order; all rows are planned. Default: 100000.",
        rich_help_panel="Display",
        show_default=False,
        min=1,
        metavar="N",
    ),
]
ShowText = Annotated[
    bool | None,
    typer.Option(
        "--show-text",
        help="Show how shared prefixes begin. Off, no text of the file is shown.",
        rich_help_panel="Display",
        show_default=False,
    ),
]


def plan(  # one parameter for each flag: this is where Typer reads them from
    context: typer.Context,
    input_name: options.InputName,
    recipe: options.RecipeFlag = None,
    limit: options.Limit = None,
    model: options.Model = None,
    revision: options.Revision = None,
    tokenizer: options.Tokenizer = None,
    dtype: options.DtypeFlag = None,
    kernel_set: options.KernelSetFlag = None,
    max_model_len: options.MaxModelLen = None,
    system: options.System = None,
    prompt_template: options.PromptTemplateFlag = None,
    prompt_field: options.PromptField = None,
    chat_template: options.ChatTemplate = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    n: options.NumSamples = None,
    block_size: options.BlockSize = None,
    num_blocks: options.NumBlocks = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    prefix_caching: options.PrefixCaching = None,
    preemption_mode: options.PreemptionFlag = None,
    swap_space_bytes: options.SwapSpaceBytes = None,
    progress: options.Progress = None,
    simulate_rows: SimulateRows = None,
    show_text: ShowText = None,
    json_report: options.JsonFlag = None,
    quiet: options.Quiet = None,
) -> None:
    """Say what a run of INPUT would compute, hold and share."""
    # Here, because `--help` must not wait for it.
    from pagedrun.cli.options.settings import Settings

    with exits.boundary():
        given = {key: value for key, value in context.params.items() if value not in (None, [], ())}
        settings = Settings.of(given)
        with settings.named():
            _run(settings)


def _run(settings: "Settings") -> None:
    # Imported here, because `--help` must not wait for them.
    from pagedrun.cli.options.job_flags import job_config
    from pagedrun.cli.progress.progress import show_progress
    from pagedrun.cli.report.plan_report import draw_forecast
    from pagedrun.cli.terminal.console import note, stderr_console
    from pagedrun.kernels.environment.threads import prepare_environment
    from pagedrun.paged.job.plan_file import DEFAULT_SIMULATED_ROWS, plan_file

    prepare_environment()
    console = stderr_console()
    given = settings.values
    quiet = bool(given.get("quiet"))
    config = job_config(settings)
    if "model" not in given and not quiet:
        note(console, f"No --model: using the bundled demo model ({config.engine.model})")
    simulated = given.get("simulate_rows", DEFAULT_SIMULATED_ROWS)
    assert isinstance(simulated, int)
    with show_progress(str(given.get("progress", "auto")), console, quiet=quiet) as listener:
        forecast = plan_file(
            config,
            listener,
            max_simulated_rows=simulated,
            show_text=bool(given.get("show_text")),
        )
    if not quiet:
        draw_forecast(forecast, console)
    if given.get("json_report"):
        # ASCII: a path in it may hold what turns a terminal around.
        json.dump(forecast, sys.stdout, ensure_ascii=True, allow_nan=False)
        sys.stdout.write("\n")
