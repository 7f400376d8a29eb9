"""The page of `inspect-cache --html`: that of a run which left its files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun.cli.page.target import check_target

if TYPE_CHECKING:
    from pagedrun.paged.job.output.side_files import RunFiles
    from pagedrun.paged.report.record.snapshot import Snapshot


def check_saved_page(files: "RunFiles", path: Path) -> None:
    """Raise `UsageError` if the page cannot go to `path`: it replaces pages, and nothing else."""
    names = ("output", "report", "snapshot", "manifest")
    check_target(path, [(getattr(files, name), name) for name in names])


def write_saved_page(files: "RunFiles", snapshot: "Snapshot | None", path: Path) -> None:
    """Write the page of a run, whose report has been read and found to be one, to `path`.

    Raises `OutputError` if the page cannot be written.
    """
    from pagedrun.cli.page.run_page import write_run_page

    report = None if files.report is None else json.loads(files.report.read_bytes())
    named = files.output or files.report or files.snapshot
    write_run_page(report, snapshot, path, "" if named is None else named.name)
