"""Files beside an output: report, manifest, snapshot and state, written and found again."""

import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pagedrun.paged.files.atomic import remove_leftovers, replace_file, replace_json
from pagedrun.paged.job.config import MANIFEST_SUFFIX, REPORT_SUFFIX, SNAPSHOT_SUFFIX, JobConfig
from pagedrun.paged.job.output.manifest import JobStatus, Manifest, WrittenFile, read_status
from pagedrun.paged.job.output.output_file import OutputError, reason_of
from pagedrun.paged.job.progress import JobListener, Tally
from pagedrun.paged.metrics.advice import Advice, advise
from pagedrun.paged.metrics.report_sections import (
    AdviceEntry,
    AnswersPart,
    EngineReport,
    JobReport,
    ScoredPromptsPart,
    TemplateAdvice,
)
from pagedrun.paged.metrics.snapshot import Snapshot
from pagedrun.paged.values.errors import UsageError, as_flag, option, spelled


class SideFiles:
    """Writer of report, manifest, snapshot and state of a job; writes none beside a stream."""

    def __init__(self, config: JobConfig, listener: JobListener) -> None:
        self._config = config
        self._listener = listener

    @property
    def has_report(self) -> bool:
        """True if the report of an earlier run exists."""
        path = self._config.report_path
        return path is not None and path.exists()

    def begin(self) -> None:
        """Remove report and snapshot of an earlier run, so that they are not taken for those of
        this one.
        """
        if self._config.report is not None:  # it may be in another folder than the output
            remove_leftovers(self._config.report)
        snapshot = self._config.snapshot_path
        of_replicas = [] if snapshot is None else replica_snapshots(snapshot)
        for path in (self._config.report_path, snapshot, *of_replicas):
            if path is not None:
                with suppress(OSError):  # writing the new one will raise
                    path.unlink(missing_ok=True)

    def write_report(self, report: JobReport) -> None:
        """Write the report. Raises `OutputError`."""
        path = self._config.report_path
        if path is not None:
            _write(path, report)

    def write_manifest(self, manifest: Manifest, status: JobStatus, tally: Tally) -> None:
        """Write the current manifest. Raises `OutputError`."""
        path = self._config.manifest_path
        if path is not None:
            _write(path, manifest.at(status, tally.rows()))

    def with_made(self, manifest: Manifest, paths: Iterable[Path]) -> Manifest:
        """Return the manifest with the files made of the journal, read back.

        Raises `OutputError`.
        """
        try:
            return replace(manifest, files={path.name: WrittenFile.of(path) for path in paths})
        except OSError as error:
            raise OutputError(
                f"an output cannot be read back ({reason_of(error)}); its rows are in the journal",
                error,
            ) from error

    def write_snapshot(self, snapshot: Snapshot | Mapping[int, Snapshot]) -> None:
        """Write the history of blocks, for replicas one file each.

        A failure costs only the snapshot.
        """
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
        """Write the state of a stalled engine; return its path."""
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


def job_report(
    engine_report: EngineReport,
    tally: Tally,
    *,
    template_advice: TemplateAdvice | None = None,
    ignore_eos: bool = False,
) -> JobReport:
    """Return the complete report, rows first, disabled features last.

    `template_advice` is the result of `TemplateAdvisor`, if any. With `ignore_eos` answers were
    meant to reach their limits.
    """
    of_answers: AnswersPart = {}
    if (accuracy := tally.accuracy()) is not None:
        of_answers["accuracy"] = accuracy
    if (reasoning := tally.reasoning()) is not None:
        of_answers["reasoning"] = reasoning
    if (votes := tally.votes()) is not None:
        of_answers["votes"] = votes
    scored = tally.scored.to_dict()
    of_prompts: ScoredPromptsPart = {} if scored is None else {"scored_prompts": scored}
    report: JobReport = {
        "rows": tally.rows(),
        **of_answers,
        **of_prompts,
        **engine_report,
        "finish_reasons": dict(tally.finish_reasons),
        "errors": dict(tally.errors),
        "template_advice": template_advice,
        "advice": [],
    }
    report["advice"] = [_told(each) for each in advise(report, ignore_eos=ignore_eos)]
    return report


def _told(advice: Advice) -> AdviceEntry:
    sentence = spelled(advice.sentence, as_flag)
    return {"code": advice.code, "sentence": sentence, "weight": advice.weight}


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Output and its side files; None for missing ones."""

    output: Path | None
    report: Path | None
    snapshot: Path | None
    manifest: Path | None

    @classmethod
    def find(cls, target: Path) -> "RunFiles":
        """Return the files of the run to which `target`, any of them, belongs.

        A report or a snapshot may have been renamed: then it is alone. Raises `UsageError` if there
        is no such file, or no run wrote it.
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

        Raises `UsageError` if it has none.
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
        """Return the status of the last run by its manifest, None without one."""
        return None if self.manifest is None else read_status(self.manifest)

    def to_dict(self) -> dict[str, str | None]:
        """Return the paths, null for missing files."""
        names = ("output", "report", "snapshot", "manifest")
        paths = {name: getattr(self, name) for name in names}
        return {name: None if path is None else _text(path) for name, path in paths.items()}


def _text(path: Path) -> str:
    """Return a path as valid UTF-8: file names may be any bytes."""
    return os.fsencode(path).decode("utf-8", "replace")


def _check_exists(target: Path) -> None:
    try:
        status = target.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{target}: cannot be read ({reason}); check the path") from error
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{target} is not a regular file; name an output, report or snapshot")


def replica_snapshot(path: Path, number: int) -> Path:
    """Return the snapshot path of a replica; path: that of a run of one engine."""
    return path.with_name(
        f"{path.name.removesuffix(SNAPSHOT_SUFFIX)}.replica-{number}{SNAPSHOT_SUFFIX}"
    )


def replica_snapshots(path: Path) -> list[Path]:
    """Return the existing snapshot paths of replicas."""
    stem = path.name.removesuffix(SNAPSHOT_SUFFIX)
    begin, end = f"{stem}.replica-", SNAPSHOT_SUFFIX
    try:
        files = [each for each in path.parent.iterdir() if each.name.startswith(begin)]
    except OSError:
        return []
    return [each for each in files if each.name[len(begin) :].removesuffix(end).isdecimal()]
