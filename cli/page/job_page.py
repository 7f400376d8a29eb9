"""The page of `generate --html`: refused before the run if it cannot be, written after it."""

from pathlib import Path

from pagedrun.cli.page.target import check_target
from pagedrun.paged.job.config import STDOUT, JobConfig
from pagedrun.paged.job.inputs.reader import STDIN, inputs_stem
from pagedrun.paged.job.job import JobResult


def check_job_page(config: JobConfig, path: Path) -> None:
    """Raise `UsageError` if the job's page cannot go to `path`."""
    files = [
        *((None if name == STDIN else name, "input") for name in config.inputs),
        (None if config.output == STDOUT else config.output, "output"),
        (config.report_path, "report"),
        (config.manifest_path, "manifest"),
        (config.snapshot_path, "snapshot"),
    ]
    check_target(path, files, overwrite=config.overwrite or config.resume)


def write_job_page(result: JobResult, config: JobConfig, path: Path) -> None:
    """Write the page of a finished job; raises `OutputError`, the rows are written by then."""
    from pagedrun.cli.page.run_page import write_run_page  # needs Jinja, which most runs do not

    name = inputs_stem(config.inputs) if config.output == STDOUT else Path(config.output).name
    write_run_page(result.report, result.snapshot, path, name)
