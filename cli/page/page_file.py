"""Page files of `generate --html` and `inspect-cache --html`.

The target is checked before a run begins, so that a run is not followed by a refusal. `run_page`
renders the page; it is imported only then, because it needs Jinja.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun.paged.job.config import STDOUT, JobConfig
from pagedrun.paged.job.inputs.reader import STDIN, inputs_stem
from pagedrun.paged.values.errors import UsageError, option

if TYPE_CHECKING:
    from pagedrun.paged.job.job import JobResult
    from pagedrun.paged.job.output.side_files import RunFiles
    from pagedrun.paged.metrics.snapshot import Snapshot


def check_job_page(config: JobConfig, path: Path) -> None:
    """Raise `UsageError` if the job's page cannot be written to `path`."""
    files = [
        *((None if name == STDIN else name, "input") for name in config.inputs),
        (None if config.output == STDOUT else config.output, "output"),
        (config.report_path, "report"),
        (config.manifest_path, "manifest"),
        (config.snapshot_path, "snapshot"),
    ]
    check_target(path, files, overwrite=config.overwrite or config.resume)


def write_job_page(result: "JobResult", config: JobConfig, path: Path) -> None:
    """Write the page of a finished job, whose rows are already written; raises `OutputError`."""
    from pagedrun.cli.page.run_page import write_run_page  # needs Jinja

    name = inputs_stem(config.inputs) if config.output == STDOUT else Path(config.output).name
    write_run_page(result.report, result.snapshot, path, name)


def check_saved_page(files: "RunFiles", path: Path) -> None:
    """Raise `UsageError` if the page cannot be written to `path`; only a page is replaced."""
    names = ("output", "report", "snapshot", "manifest")
    check_target(path, [(getattr(files, name), name) for name in names])


def write_saved_page(files: "RunFiles", snapshot: "Snapshot | None", path: Path) -> None:
    """Write the page of a run, whose report was validated, to `path`; raises `OutputError`."""
    from pagedrun.cli.page.run_page import write_run_page

    report = None if files.report is None else json.loads(files.report.read_bytes())
    named = files.output or files.report or files.snapshot
    write_run_page(report, snapshot, path, "" if named is None else named.name)


_HTML = option("html")
MARK = b'<meta name="generator" content="pagedrun">'  # near the beginning of every page
_MARK_WITHIN = 200


def check_target(
    path: Path,
    others: Iterable[tuple[str | Path | None, str]] = (),
    *,
    overwrite: bool | None = None,
) -> None:
    """Raise `UsageError` if a page cannot be written to `path`.

    others: files that the page must not replace, each with its name for messages. overwrite:
    permits an existing file to be replaced; None, for commands without that flag, permits pages
    only.
    """
    for other, what in others:
        if other is not None and os.path.realpath(path) == os.path.realpath(other):
            raise UsageError(f"{_HTML} {path} is the {what} itself; name another file")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{_HTML} {path}: name a file in an existing folder")
    if path.exists() and not path.is_file():
        raise UsageError(f"{_HTML} {path} is not a regular file; name another one")
    if overwrite is None and path.exists() and not _is_page(path):
        raise UsageError(f"{_HTML} {path} exists and is not a page of pagedrun; name another file")
    if overwrite is False and path.exists():
        raise UsageError(f"{_HTML} {path} exists; pass {option('overwrite')} or name another file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{_HTML} {path}: the folder {path.parent} cannot be written to")


def _is_page(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return MARK in file.read(_MARK_WITHIN)
    except OSError:
        return False
