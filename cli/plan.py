"""`pagedrun plan`: forecast of a run, on stderr or as JSON on stdout."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagedrun.cli import exits
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE, Display
from pagedrun.cli.options.pooled_flags import OF_TASK, POOLED
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.flags import Flag, Panel
from pagedrun.paged.values.pooling import PoolingParams, Task

if TYPE_CHECKING:
    from pagedrun.cli.options.settings import Settings

HELP = """Show what a run of INPUT would compute, hold and share, without loading the weights.

Shows the tree of shared prefixes, the savings by sharing, the KV memory over time, the rows \
that fit into it, the best block size for the file, and parts of the prompts that prevent \
sharing. Answers are assumed to be as long as --max-tokens allows. The time of a run is \
estimated once a run has been timed on this machine, or with --calibrate, which loads the \
weights. The steps that drafts save are estimated with --answers, an output with answers to \
some of the rows. With --task, the plan is that of `embed`, `rerank` or `classify`: texts, \
duplicates, tokens, those of padded batches, and steps.

Examples:

  pagedrun plan prompts.jsonl --model ./model --max-tokens 64
  pagedrun plan prompts.jsonl --model ./model --calibrate
  pagedrun plan rows.jsonl --model ./model --prompt-template @prompt.jinja
  pagedrun plan rows.jsonl --recipe judge.yaml
  pagedrun plan prompts.jsonl --model ./model --replicas 8
  pagedrun plan prompts.jsonl --model ./model --answers first-50.out.jsonl
  pagedrun plan texts.jsonl --task embed --model ./all-MiniLM-L6-v2
  pagedrun plan prompts.jsonl --model ./model --json --quiet | jq .tokens

Exit status: 0 planned, 1 failure, 2 refused.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options of `plan`."""

    task: Annotated[
        Task | None,
        Flag(
            "Plan for another command than generate, whose flags then apply.",
            Panel.FILES,
            "COMMAND",
            default="generate",
        ),
    ] = None
    answers: Annotated[
        Path | None,
        Flag(
            "Estimate the steps with drafts from answers to rows of INPUT: an output of generate, "
            "with --limit 50 for example.",
            Panel.FILES,
            "OUTPUT",
        ),
    ] = None
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


# Flags of PoolingParams with an effect on the plan.
OF_PLAN = (
    *("pooling", "normalize", "dimensions", "prompt_name", "prompt", "chunks"),
    *("instruction", "pair_order"),
)
FLAGS = (
    GENERATE.only(
        *("input_name", "input_format", "delimiter", "encoding", "recipe", "limit"),
        *("model", "revision", "tokenizer", "model_impl", "device", "dtype", "quantization"),
        *("kernel_set", "activations", "max_model_len", "speculate"),
        *("system", "prompt_template", "prompt_field"),
        *("raw", "chat_template", "chat_template_kwargs", "max_tokens", "temperature", "n"),
        *("block_size", "num_blocks", "kv_cache_memory_bytes", "max_num_seqs"),
        *("max_num_batched_tokens", "refill_share"),
        *("prefix_caching", "prefix_once", "preemption_mode", "swap_space_bytes", "swap_dir"),
        *("kv_cache_dtype", "gpu_memory_utilization", "weights_memory", "packed_dir", "progress"),
    )
    + Flags.of(PlanOptions)
    + GENERATE.only("on_overlong")
    + POOLED.only(*OF_PLAN)
    + GENERATE.only("json_report", "quiet")
)


def _plan(context: typer.Context, given: TypedValues) -> None:
    """Forecast a run of INPUT."""
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.settings import Settings

    with exits.boundary():
        typed = given.get("task")
        task = None if typed is None else Task(str(typed))
        if task is None:
            settings = Settings.of(given)
        else:
            flags = OF_TASK[task]
            settings = Settings.of(given, {each.name for each in flags}, of_recipe=flags)
        with settings.named():
            _check_flags(given, task)
            _run(settings, task)


plan = FLAGS.command(_plan)


def _check_flags(given: TypedValues, task: Task | None) -> None:
    """Refuse flags without an effect on the plan of a task, None for `generate`."""
    if task is None:
        if name := next((each for each in OF_PLAN if each in given), None):
            raise UsageError(f"{option(name)} goes with {option('task')}", field=name)
        return
    known = {"task", *(each.name for each in OF_TASK[task])}
    for name in given:
        if name not in known:
            raise UsageError(
                f"{option(name)} has no effect on the plan of pagedrun {task}; leave it out",
                field=name,
            )


def _run(settings: "Settings", task: Task | None) -> None:
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.job_flags import job_config, show_command
    from pagedrun.cli.progress.progress import show_progress
    from pagedrun.cli.report.plan_report import draw_forecast, draw_text_plan
    from pagedrun.cli.report.report_figures import warn_of_weights
    from pagedrun.cli.terminal.console import note, print_json, stderr_console
    from pagedrun.kernels.environment.threads import prepare_environment
    from pagedrun.paged.job.inputs.reader import STDIN
    from pagedrun.paged.job.planned.plan_file import DEFAULT_SIMULATED_ROWS, plan_file
    from pagedrun.paged.job.planned.text_plan import TextPlan, plan_texts
    from pagedrun.paged.planning.forecast_sections import PlanReport

    prepare_environment()
    console = stderr_console()
    display, options = settings.read(Display), settings.read(PlanOptions)
    config = job_config(settings)
    if "model" not in settings.given and not display.quiet:
        note(console, f"No --model: using the bundled demo model ({config.engine.model})")
    with show_progress(display.progress, console, quiet=display.quiet) as listener:
        warn_of_weights(config.engine, listener)
        forecast: PlanReport | TextPlan
        if task is not None:
            pooled = settings.read(PoolingParams, task=task)
            forecast = texts = plan_texts(config.with_task(pooled), listener)
        else:
            forecast = answers = plan_file(
                config,
                listener,
                max_simulated_rows=options.simulate_rows or DEFAULT_SIMULATED_ROWS,
                show_text=options.show_text,
                calibrates=options.calibrate,
                num_replicas=options.replicas,
                answers=options.answers,
            )
    if task is not None and not display.quiet:
        draw_text_plan(texts, console)
    elif not display.quiet:
        draw_forecast(answers, console)
        if config.input != STDIN:
            note(console, f"See a prompt as the model reads it: {show_command(settings)}")
    if display.json_report:
        print_json(forecast)
