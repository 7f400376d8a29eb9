"""`pagedrun plan`: forecast of a run, on stderr or as JSON on stdout."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pagedrun.cli import exits
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE, Display
from pagedrun.paged.values.flags import Flag, Panel

if TYPE_CHECKING:
    from pagedrun.cli.options.settings import Settings

HELP = """Show what a run of INPUT would compute, hold and share, without loading the weights.

Shows the tree of shared prefixes, the savings by sharing, the KV memory over time, the rows \
that fit into it, the best block size for the file, and parts of the prompts that prevent \
sharing. Answers are assumed to be as long as --max-tokens allows. The time of a run is \
estimated once a run has been timed on this machine, or with --calibrate, which loads the \
weights.

Examples:

  pagedrun plan prompts.jsonl --model ./model --max-tokens 64
  pagedrun plan prompts.jsonl --model ./model --calibrate
  pagedrun plan rows.jsonl --model ./model --prompt-template @prompt.jinja
  pagedrun plan rows.jsonl --recipe judge.yaml
  pagedrun plan prompts.jsonl --model ./model --replicas 8
  pagedrun plan prompts.jsonl --model ./model --json --quiet | jq .tokens

Exit status: 0 planned, 1 failure, 2 refused.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options of `plan`."""

    simulate_rows: Annotated[
        int | None,
        Flag(
            "Simulate the first N rows, in run order; all rows are planned.",
            Panel.DISPLAY,
            "N",
            default="100000",
            low=1,
        ),
    ] = None
    replicas: Annotated[
        int | None,
        Flag(
            "Plan for N replicas: units, and prefixes that are computed again.",
            Panel.DISPLAY,
            "N",
            low=1,
        ),
    ] = None
    show_text: Annotated[
        bool,
        Flag(
            "Show the beginnings of shared prefixes. Off, no text of the file is shown.",
            Panel.DISPLAY,
            declared=("--show-text",),
        ),
    ] = False
    calibrate: Annotated[
        bool,
        Flag(
            "Load the model and time it for at most ten seconds, to estimate the time of a "
            "run before the first one.",
            Panel.DISPLAY,
            declared=("--calibrate",),
        ),
    ] = False


FLAGS = (
    GENERATE.only(
        *("input_name", "input_format", "delimiter", "recipe", "limit"),
        *("model", "revision", "tokenizer", "model_impl", "device", "dtype", "quantization"),
        *("kernel_set", "activations", "max_model_len"),
        *("system", "prompt_template", "prompt_field"),
        *("raw", "chat_template", "chat_template_kwargs", "max_tokens", "temperature", "n"),
        *("block_size", "num_blocks", "kv_cache_memory_bytes", "max_num_seqs"),
        *("max_num_batched_tokens", "refill_share"),
        *("prefix_caching", "prefix_once", "preemption_mode", "swap_space_bytes", "swap_dir"),
        *("kv_cache_dtype", "gpu_memory_utilization", "weights_memory", "packed_dir", "progress"),
    )
    + Flags.of(PlanOptions)
    + GENERATE.only("json_report", "quiet")
)


def _plan(context: typer.Context, given: TypedValues) -> None:
    """Forecast a run of INPUT."""
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.settings import Settings

    with exits.boundary():
        settings = Settings.of(given)
        with settings.named():
            _run(settings)


plan = FLAGS.command(_plan)


def _run(settings: "Settings") -> None:
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.job_flags import job_config, show_command
    from pagedrun.cli.progress.progress import show_progress
    from pagedrun.cli.report.plan_report import draw_forecast
    from pagedrun.cli.report.report_figures import warn_of_weights
    from pagedrun.cli.terminal.console import note, print_json, stderr_console
    from pagedrun.kernels.environment.threads import prepare_environment
    from pagedrun.paged.job.inputs.reader import STDIN
    from pagedrun.paged.job.planned.plan_file import DEFAULT_SIMULATED_ROWS, plan_file

    prepare_environment()
    console = stderr_console()
    display, options = settings.read(Display), settings.read(PlanOptions)
    config = job_config(settings)
    if "model" not in settings.given and not display.quiet:
        note(console, f"No --model: using the bundled demo model ({config.engine.model})")
    with show_progress(display.progress, console, quiet=display.quiet) as listener:
        warn_of_weights(config.engine, listener)
        forecast = plan_file(
            config,
            listener,
            max_simulated_rows=options.simulate_rows or DEFAULT_SIMULATED_ROWS,
            show_text=options.show_text,
            calibrates=options.calibrate,
            num_replicas=options.replicas,
        )
    if not display.quiet:
        draw_forecast(forecast, console)
        if config.input != STDIN:
            note(console, f"See a prompt as the model reads it: {show_command(settings)}")
    if display.json_report:
        print_json(forecast)
