"""The names of the files that say what became of the blocks of each replica."""

from pathlib import Path

from pagedrun.paged.job.config import SNAPSHOT_SUFFIX


def replica_snapshot(path: Path, number: int) -> Path:
    """Return where the snapshot of a replica is; path: that of a run of one engine."""
    return path.with_name(
        f"{path.name.removesuffix(SNAPSHOT_SUFFIX)}.replica-{number}{SNAPSHOT_SUFFIX}"
    )


def replica_snapshots(path: Path) -> list[Path]:
    """Return those that are there."""
    stem = path.name.removesuffix(SNAPSHOT_SUFFIX)
    begin, end = f"{stem}.replica-", SNAPSHOT_SUFFIX
    try:
        files = [each for each in path.parent.iterdir() if each.name.startswith(begin)]
    except OSError:
        return []
    return [each for each in files if each.name[len(begin) :].removesuffix(end).isdecimal()]
