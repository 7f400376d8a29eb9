"""SideFiles: what is written beside the output, each whole or not at all."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pagedrun.paged.files.atomic import replace_file, replace_json
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.output.manifest import JobStatus, Manifest
from pagedrun.paged.job.output.output_file import OutputError
from pagedrun.paged.job.output.replica_snapshots import replica_snapshot, replica_snapshots
from pagedrun.paged.job.progress.listener import JobListener
from pagedrun.paged.job.progress.tally import Tally
from pagedrun.paged.report.record.report_sections import JobReport
from pagedrun.paged.report.record.snapshot import Snapshot


class SideFiles:
    """Writes report, manifest, snapshot and state of a job; none of an output that is a stream."""

    def __init__(self, config: JobConfig, listener: JobListener) -> None:
        self._config = config
        self._listener = listener

    @property
    def has_report(self) -> bool:
        """Whether the report of an earlier run is there."""
        path = self._config.report_path
        return path is not None and path.exists()

    def begin(self) -> None:
        """Remove report and snapshot of an earlier run: if this one is cut off, nobody shall take
        them for its own."""
        snapshot = self._config.snapshot_path
        of_replicas = [] if snapshot is None else replica_snapshots(snapshot)
        for path in (self._config.report_path, snapshot, *of_replicas):
            if path is not None:
                with suppress(OSError):  # then writing the new one raises
                    path.unlink(missing_ok=True)

    def write_report(self, report: JobReport) -> None:
        """Write the report. Raises `OutputError`."""
        path = self._config.report_path
        if path is not None:
            _write(path, report)

    def write_manifest(self, manifest: Manifest, status: JobStatus, tally: Tally) -> None:
        """Write the manifest as of now. Raises `OutputError`."""
        path = self._config.manifest_path
        if path is not None:
            _write(path, manifest.at(status, tally.rows()))

    def write_snapshot(self, snapshot: Snapshot | Mapping[int, Snapshot]) -> None:
        """Write where every block was, of replicas each one's by its number; a view of what is
        done, so a failure costs only that."""
        path = self._config.snapshot_path
        if path is None:
            return
        several = (
            {path: snapshot}
            if isinstance(snapshot, Snapshot)
            else {replica_snapshot(path, number): each for number, each in snapshot.items()}
        )
        for path, each in several.items():
            try:
                replace_file(path, [each.to_bytes()])
            except OSError as error:
                self._listener.on_warning(
                    f"{path} cannot be written ({error.strerror}): inspect-cache will not be "
                    "able to show the blocks of this run"
                )

    def write_state(self, state: Mapping[str, object]) -> str:
        """Write the state of an engine that does not go on; return where it is."""
        path = self._config.state_path
        if path is None:
            return f"its state: {json.dumps(state)}"
        try:
            replace_json(path, state)
        except OSError as error:
            return f"its state could not be written to {path} ({error.strerror})"
        return f"its state is in {path}"


def _write(path: Path, value: object) -> None:
    try:
        replace_json(path, value)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror})", error) from error
