"""What `inspect-cache` cannot show of a run, or not with certainty, and why."""

from pagedrun.paged.job.output.manifest import JobStatus
from pagedrun.paged.job.output.run_files import RunFiles
from pagedrun.paged.report.inspect.saved_report import SavedReport
from pagedrun.paged.report.record.snapshot import Snapshot


def run_notes(
    files: RunFiles,
    snapshot: Snapshot | None,
    report: SavedReport | None,
    *,
    has_rows: bool,
    of_replica: bool = False,
) -> list[str]:
    """Return one sentence for each. of_replica: whether the snapshot is that of one of several."""
    notes = []
    if snapshot is None and report is not None and report.replicas:
        notes.append(
            "Each replica has a pool of its own: --replica K shows its blocks, lifetimes and "
            "preemptions, and --row the block table of a row that it answered"
        )
    elif snapshot is None:
        notes.append(
            "There is no snapshot beside the report, so there is no block map, no block table, no "
            "lifetime and no cause of a preemption: a run of an earlier version left none, nor "
            "does one without rows for the engine"
        )
        if has_rows:
            notes.append("--row needs the snapshot")
    if report is None and of_replica:
        notes.append(
            "Hits and misses are counted for all replicas together: they are shown without "
            "--replica"
        )
    elif report is None:
        notes.append(
            "There is no report beside the snapshot, so hits and misses are not known: a run that "
            "did not finish leaves none"
        )
    if snapshot is not None and snapshot.row_stride > 1:
        notes.append(
            f"Of this run the holdings of one row in {snapshot.row_stride} were kept, to bound "
            "the snapshot: block tables, lifetimes and rows of shared blocks are of these; the "
            "map and the counts of holders are of all"
        )
    if snapshot is not None and report is not None and not _is_same_pool(snapshot, report):
        notes.append("Warning: the report and the snapshot are of pools of different shapes")
    status = files.status()
    if status not in (None, JobStatus.FINISHED):
        notes.append(
            f"Warning: by its manifest the last run of this output is {status}: the files "
            "beside it may be of a run before"
        )
    return notes


def _is_same_pool(snapshot: Snapshot, report: SavedReport) -> bool:
    names = ("block_size", "num_blocks", "bytes_per_token")
    return all(report.get(name) == getattr(snapshot, name) for name in names)
