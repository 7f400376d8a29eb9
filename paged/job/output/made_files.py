"""Whether files without their journal are what a run that is gone on with would make."""

from pathlib import Path

from pagedrun.paged.job.output.finished_rows import FinishedRows
from pagedrun.paged.job.output.manifest import JobStatus, Manifest
from pagedrun.paged.job.output.output_layout import OutputLayout
from pagedrun.paged.job.output.same_job import check_same_job
from pagedrun.paged.job.output.saved_manifest import read_manifest
from pagedrun.paged.values.errors import UsageError, option

_SHAPING = ("columns", "flatten", "answer_column", "explode_json", "shards")


def all_rows_of(layout: OutputLayout, new: Manifest, path: Path) -> FinishedRows:
    """Return the rows that are in files whose journal is gone, as it goes when all are answered.

    `path` is the manifest of the run that made them. Raises `UsageError` unless that run was of
    the same job as `new`, came to its end and wrote the same columns.
    """
    check_same_job(new, path)
    old = read_manifest(path)
    for name in _SHAPING:
        before = old.parameters.get(name)
        if before is not None and before.value != new.parameters[name].value:
            raise UsageError(
                f"{option('resume')}: {layout.shown} was written with another {option(name)} "
                f"({before.value}); {_instead()}"
            )
    rows = {name: value for name, value in old.rows.items() if isinstance(value, int)}
    total, failed = rows.get("total", 0), rows.get("failed", 0)
    if old.status is JobStatus.FINISHED and not failed:
        return FinishedRows.all(total)
    raise UsageError(
        f"{option('resume')}: {layout.shown} cannot be continued without its journal "
        f"({layout.journal}); {_instead()}"
    )


def _instead() -> str:
    return f"pass {option('overwrite')} instead of {option('resume')} to recompute all rows"
