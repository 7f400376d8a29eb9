"""RunFiles: the files that a run left, found from any one of them."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from pagedrun.paged.job.config import MANIFEST_SUFFIX, REPORT_SUFFIX, SNAPSHOT_SUFFIX
from pagedrun.paged.job.output.manifest import JobStatus
from pagedrun.paged.job.output.replica_snapshots import replica_snapshot
from pagedrun.paged.job.output.saved_manifest import read_status
from pagedrun.paged.values.errors import UsageError, option


@dataclass(frozen=True, slots=True)
class RunFiles:
    """An output and the files beside it; None for what is not there."""

    output: Path | None
    report: Path | None
    snapshot: Path | None
    manifest: Path | None

    @classmethod
    def find(cls, target: Path) -> "RunFiles":
        """Return the files of the run that `target` is one of; any of them may be named.

        A report or a snapshot may have another name than the run gives it: then it is alone.
        Raises `UsageError` if there is no such file, or no run left it.
        """
        for suffix in (REPORT_SUFFIX, SNAPSHOT_SUFFIX, MANIFEST_SUFFIX):
            if target.name.endswith(suffix) and len(target.name) > len(suffix):
                _check_exists(target)
                return cls._beside(target.with_name(target.name.removesuffix(suffix)))
        files = cls._beside(target)
        if files.report is not None or files.snapshot is not None:
            return files
        _check_exists(target)
        if files.status() in (JobStatus.RUNNING, JobStatus.INTERRUPTED, JobStatus.FAILED):
            raise UsageError(
                f"{target}: its run was not finished, and only a finished run has a "
                "memory report; continue it with the same generate command and --resume"
            )
        if target.suffix == ".npz":
            return cls(None, None, target, None)
        if target.suffix == ".json":
            return cls(None, target, None, None)
        raise UsageError(
            f"{target}: neither {target.name}{REPORT_SUFFIX} nor {target.name}{SNAPSHOT_SUFFIX} "
            "is beside it; name the output of a run of pagedrun generate, its report or its "
            "snapshot"
        )

    @classmethod
    def _beside(cls, output: Path) -> "RunFiles":
        def there(suffix: str) -> Path | None:
            path = output.with_name(output.name + suffix)
            return path if path.is_file() else None

        return cls(
            output if output.is_file() else None,
            there(REPORT_SUFFIX),
            there(SNAPSHOT_SUFFIX),
            there(MANIFEST_SUFFIX),
        )

    def of_replica(self, number: int) -> "RunFiles":
        """Return the files of one replica of the run, which has no report of its own.

        Raises `UsageError` if it left none.
        """
        known = next(each for each in (self.output, self.report, self.manifest) if each is not None)
        name = known.name
        for suffix in (REPORT_SUFFIX, MANIFEST_SUFFIX):
            name = name.removesuffix(suffix)
        path = replica_snapshot(known.with_name(name + SNAPSHOT_SUFFIX), number)
        if not path.is_file():
            raise UsageError(
                f"{option('replica')} {number}: {path.name} is not beside {known.name}; the "
                "report lists the replicas under `replicas`, and those that died have no blocks "
                "to show"
            )
        return RunFiles(self.output, None, path, self.manifest)

    def status(self) -> JobStatus | None:
        """Return how far the last run came by its manifest, None if that does not tell."""
        return None if self.manifest is None else read_status(self.manifest)

    def to_dict(self) -> dict[str, str | None]:
        """Return the paths, null for those that are not there."""
        names = ("output", "report", "snapshot", "manifest")
        paths = {name: getattr(self, name) for name in names}
        return {name: None if path is None else _text(path) for name, path in paths.items()}


def _text(path: Path) -> str:
    """Return a path as UTF-8 can hold it: a name on a disk may be any bytes."""
    return os.fsencode(path).decode("utf-8", "replace")


def _check_exists(target: Path) -> None:
    try:
        status = target.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{target}: cannot be read ({reason}); check the path") from error
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{target} is not a regular file; name an output, report or snapshot")
