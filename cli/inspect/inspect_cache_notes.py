"""What `inspect-cache` cannot show of a run, or not with certainty, and why."""

from pagedrun.paged.job.output.manifest import JobStatus
from pagedrun.paged.job.output.side_files import RunFiles
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
            "Each replica has its own pool: --replica K shows its blocks, lifetimes and "
            "preemptions, and with --row the block table of a row that it answered"
        )
    elif snapshot is None:
        notes.append(
            "There is no snapshot beside the report, so there is no block map, no block "
            "table, no lifetime and no cause of a preemption: runs of earlier versions, and "
            "runs without rows for the engine, write none"
        )
        if has_rows:
            notes.append("--row needs the snapshot")
    if report is None and of_replica:
        notes.append(
            "Hits and misses are counted for all replicas together; leave out --replica to see them"
        )
    elif report is None:
        notes.append(
            "There is no report beside the snapshot, so hits and misses are unknown: an "
            "unfinished run writes none"
        )
    if snapshot is not None and snapshot.row_stride > 1:
        notes.append(
            "To bound its size, the snapshot of this run has one row in "
            f"{snapshot.row_stride}: block tables, lifetimes and rows of shared blocks refer "
            "to these rows; the map and the counts of holders refer to all"
        )
    if snapshot is not None and report is not None and not _is_same_pool(snapshot, report):
        notes.append("Warning: the report and the snapshot describe pools of different shapes")
    status = files.status()
    if status not in (None, JobStatus.FINISHED):
        notes.append(
            f"Warning: according to its manifest the last run of this output is {status}: "
            "the files beside it may belong to an earlier run"
        )
    return notes


def _is_same_pool(snapshot: Snapshot, report: SavedReport) -> bool:
    names = ("block_size", "num_blocks", "bytes_per_token")
    return all(report.get(name) == getattr(snapshot, name) for name in names)
