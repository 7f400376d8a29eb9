"""The page of `generate --html`: refused before the run if it cannot be, written after it."""

from pathlib import Path

from pagedrun.cli.page.target import check_target
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.output_file import STDOUT
from pagedrun.paged.job.reader import STDIN


def check_job_page(config: JobConfig, path: Path) -> None:
    """Raise `UsageError` if the job's page cannot go to `path`."""
    files = [
        (None if config.input == STDIN else config.input, "input"),
        (None if config.output == STDOUT else config.output, "output"),
        (config.report_path, "report"),
        (config.manifest_path, "manifest"),
    ]
    check_target(path, files, replace=config.overwrite or config.resume)
