"""`pagedrun generate`: from flags to a job, and from its result to an exit status."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pagedrun.cli import exits
from pagedrun.cli.options import options
from pagedrun.cli.terminal.lossy_stream import discard
from pagedrun.paged.job.control.signals import JobInterrupted, SignalGuard
from pagedrun.paged.job.output.output_file import OutputError

if TYPE_CHECKING:
    from pagedrun.cli.options.settings import Settings

HELP = """Answer every row of INPUT: one output row each, and a memory report at the end.

A row has a column "prompt", "messages" or "prompt_token_ids". It may have an "id" and sampling \
parameters of its own; other columns come back under "input". Rows are the lines of a .jsonl \
file, the elements of a .json array, the records of a .csv file with a header, of a .parquet file \
or of a dataset (a save_to_disk folder, or hf:NAME@CONFIG:SPLIT from the hub or its cache); in \
a .txt file each line is a prompt. Rows of OpenAI batch files are answered in OpenAI's format.

Examples:

  pagedrun generate prompts.jsonl
  pagedrun generate prompts.jsonl -o answers.jsonl --model ./model --max-tokens 64
  pagedrun generate rows.jsonl --prompt-template "Translate: {{ text }}"
  pagedrun generate rows.jsonl --recipe judge --model ./model
  pagedrun generate rows.csv.gz --prompt-field question
  pagedrun generate hf:openai/gsm8k@main:test --prompt-field question --limit 100
  pagedrun generate prompts.jsonl --html memory.html
  pagedrun generate - -o - < rows.jsonl > answers.jsonl

Exit status: 0 all rows ok, 1 engine failure, 2 refused, 3 some rows failed, 4 stopped early, \
130 interrupted by SIGINT, 143 by SIGTERM, 129 by SIGHUP: resumable, like 1 and 4.
"""


def generate(  # one parameter for each flag: this is where Typer reads them from
    context: typer.Context,
    input_name: options.InputName,
    output: options.Output = None,
    recipe: options.RecipeFlag = None,
    overwrite: options.Overwrite = None,
    resume: options.Resume = None,
    retry_errors: options.RetryErrors = None,
    ordered: options.Ordered = None,
    strict: options.Strict = None,
    limit: options.Limit = None,
    report: options.ReportPath = None,
    html: options.HtmlPath = None,
    model: options.Model = None,
    revision: options.Revision = None,
    tokenizer: options.Tokenizer = None,
    device: options.DeviceFlag = None,
    dtype: options.DtypeFlag = None,
    max_model_len: options.MaxModelLen = None,
    reproducible: options.Reproducible = None,
    system: options.System = None,
    prompt_template: options.PromptTemplateFlag = None,
    prompt_field: options.PromptField = None,
    chat_template: options.ChatTemplate = None,
    on_overlong: options.OnOverlong = None,
    max_tokens: options.MaxTokens = None,
    min_tokens: options.MinTokens = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    n: options.NumSamples = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    stop_token_ids: options.StopTokenIds = None,
    ignore_eos: options.IgnoreEos = None,
    generation_config: options.GenerationConfigFlag = None,
    block_size: options.BlockSize = None,
    num_blocks: options.NumBlocks = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    prefix_caching: options.PrefixCaching = None,
    prefix_once: options.PrefixOnce = None,
    prefix_store: options.PrefixStore = None,
    prefix_store_bytes: options.PrefixStoreBytes = None,
    preemption_mode: options.PreemptionFlag = None,
    swap_space_bytes: options.SwapSpaceBytes = None,
    kv_cache_dtype: options.KvCacheDtypeFlag = None,
    gpu_memory_utilization: options.GpuMemoryUtilization = None,
    enforce_eager: options.EnforceEager = None,
    kernel_set: options.KernelSetFlag = None,
    stall_timeout: options.StallTimeout = None,
    progress: options.Progress = None,
    json_report: options.JsonFlag = None,
    quiet: options.Quiet = None,
) -> None:
    """Answer every row of INPUT, and report where the memory went."""
    # Here, because `--help` must not wait for it.
    from pagedrun.cli.options.settings import Settings

    guard = context.obj
    with exits.boundary(guard):
        given = {key: value for key, value in context.params.items() if value not in (None, [], ())}
        settings = Settings.of(given)
        with settings.named():
            raise typer.Exit(_run(settings, guard))


def _run(settings: "Settings", guard: SignalGuard | None) -> int:
    # Imported here, because `--help` must not wait for them.
    from pagedrun.kernels.environment.threads import prepare_environment

    prepare_environment()  # before numba, by the next lines, and torch are imported
    from pagedrun.cli.options.job_flags import job_config, warn_of_model
    from pagedrun.cli.page.job_page import check_job_page, write_job_page
    from pagedrun.cli.progress.progress import show_progress
    from pagedrun.cli.report.report import draw_report, summary
    from pagedrun.cli.terminal.console import note, stderr_console
    from pagedrun.paged.job.job import run_job

    console = stderr_console()
    given = settings.values
    quiet = bool(given.get("quiet"))
    config = job_config(settings)
    page = given.get("html")
    if isinstance(page, Path):
        check_job_page(config, page)
    if "model" not in given and not quiet:
        note(console, f"No --model: using the bundled demo model ({config.engine.model})")
    with show_progress(str(given.get("progress", "auto")), console, quiet=quiet) as listener:
        warn_of_model(settings, config, listener)
        result = run_job(config, listener, guard=guard)
    try:
        if not quiet:
            draw_report(result.report, console)
            for line in summary(result, config.output):
                note(console, line, "bold yellow" if result.num_failed else "bold")
        if given.get("json_report"):
            _print_json(result.report)
        if isinstance(page, Path):
            write_job_page(result, config, page)
            if not quiet:
                note(console, f"page → {page}", "bold")
    except (JobInterrupted, OutputError) as error:
        error.add_note("every row is written")
        raise
    return exits.ROWS_FAILED if result.num_failed else exits.OK


def _print_json(report: dict[str, object]) -> None:
    try:
        # ASCII: a path in it may hold what turns a terminal around.
        json.dump(report, sys.stdout, ensure_ascii=True, allow_nan=False)
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout)
        message = f"the report cannot be written to standard output ({error.strerror})"
        raise OutputError(message, error) from error
