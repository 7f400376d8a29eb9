"""The job: a file of rows in, a file of answers out, and beside it what happened."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pagedrun.paged.engine_config import EngineConfig
from pagedrun.paged.errors import EngineError, UsageError
from pagedrun.paged.job.atomic import replace_file, replace_json
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.finished_rows import FinishedRows
from pagedrun.paged.job.interfaces import ModelOpener, OpenModel, RunLike
from pagedrun.paged.job.listener import JobListener, Phase, SilentListener
from pagedrun.paged.job.manifest import JobStatus, Manifest
from pagedrun.paged.job.output_file import OutputError, OutputFile
from pagedrun.paged.job.output_row import answered_row, failed_row
from pagedrun.paged.job.prepare import Prepared, check_side_files, prepare
from pagedrun.paged.job.reader import open_rows
from pagedrun.paged.job.report_file import empty_engine_report, job_report
from pagedrun.paged.job.requests import JobRow
from pagedrun.paged.job.sharing_check import check_sharing
from pagedrun.paged.job.signals import JobInterrupted, SignalGuard
from pagedrun.paged.job.tally import Tally
from pagedrun.paged.job.writer import RowWriter
from pagedrun.paged.report.snapshot import Snapshot
from pagedrun.paged.request import Completion, Request


@dataclass(frozen=True, slots=True)
class JobResult:
    """A finished job: its report, where that and the manifest were written, if anywhere, and what
    became of every block; None if no row needed the engine.
    """

    report: dict[str, Any]
    num_failed: int
    report_path: Path | None
    manifest_path: Path | None
    snapshot: Snapshot | None = None


def run_job(
    config: JobConfig,
    listener: JobListener | None = None,
    open_model: ModelOpener | None = None,
) -> JobResult:
    """Answer every row of the input; one output row for each, whatever becomes of it.

    Nothing is written before input, prompts and model have been checked and the run is planned.
    Raises `UsageError` for what is refused, `EngineError` if the engine cannot go on,
    `OutputError` if the output cannot, `JobInterrupted` for a signal; rows written by then stay,
    and the output is whole lines.
    """
    listener = listener or SilentListener()
    check_side_files(config)
    with SignalGuard() as guard:
        output = OutputFile.claim(
            config.output,
            overwrite=config.overwrite,
            resume=config.resume,
            input_name=config.input,
        )
        try:
            if config.ordered and not output.is_regular:
                raise UsageError("--ordered sorts the output at the end; name a file with -o")
            if config.resume and not output.is_regular:
                raise UsageError("--resume goes on with a file; name it with -o")
            with open_rows(config.input, config.max_line_bytes) as source:
                prepared = prepare(config, source, listener, open_model or _open_local)
                return _Job(config, listener, guard, prepared).run(output)
        finally:
            output.close()


def _open_local(
    engine_config: EngineConfig, tokenizer_folder: Path, chat_template: str | None
) -> OpenModel:
    from pagedrun.paged.job.model import LocalModel  # imports torch

    return LocalModel(engine_config, tokenizer_folder, chat_template)


class _Job:
    """The second half of a job: all is checked, the rows are to be answered."""

    def __init__(
        self, config: JobConfig, listener: JobListener, guard: SignalGuard, prepared: Prepared
    ) -> None:
        self._config = config
        self._listener = listener
        self._guard = guard
        self._prepared = prepared
        self._tally = Tally(total=0)
        self._waiting: dict[int, JobRow] = {}  # rows that the engine was asked, by index
        self._finished = FinishedRows()  # by an earlier run

    def run(self, output: OutputFile) -> JobResult:
        prepared = self._prepared
        manifest = Manifest.start(self._config, prepared.source(), prepared.max_model_len)
        if self._config.resume:
            self._finished = self._go_on(output, manifest)
        self._count(prepared.rows)
        writer = RowWriter(output, ordered=self._config.ordered, hold=self._guard.hold)
        run = self._start(writer)
        try:
            with self._guard.hold():
                writer.begin(self._finished)
                self._write_manifest(manifest, JobStatus.RUNNING)
            engine_report = self._answer(writer, run)
            self._tally.check()
            manifest = replace(manifest, input=prepared.source())
            self._listener.on_phase(Phase.FINISH)
            writer.finish()
        except BaseException as error:
            interrupted = isinstance(error, JobInterrupted | KeyboardInterrupt)
            status = JobStatus.INTERRUPTED if interrupted else JobStatus.FAILED
            done = self._tally.ok + self._tally.failed + self._tally.skipped
            rest = "; the same command with --resume does the rest" if output.is_regular else ""
            error.add_note(f"{done:,} of {self._tally.total:,} rows are written and whole{rest}")
            with suppress(OutputError), self._guard.hold():  # the first error is the one to tell
                writer.sync()
                self._write_manifest(manifest, status)
            raise
        report = self._report(engine_report)
        snapshot = None if run is None else run.snapshot()
        with self._guard.hold():
            self._write_report(report)
            self._write_snapshot(snapshot)
            self._write_manifest(manifest, JobStatus.FINISHED)
        num_failed = self._tally.failed + self._finished.num_failed
        paths = self._config.report_path, self._config.manifest_path
        return JobResult(report, num_failed, *paths, snapshot)

    def _go_on(self, output: OutputFile, manifest: Manifest) -> FinishedRows:
        """Return what an earlier run of the same job has left; with `retry_errors` its failed rows
        are taken out. Raises `UsageError` if the output is of another job.
        """
        finished = FinishedRows.read(output.path)
        path = self._config.manifest_path
        # A file without a whole line may still be somebody's: only an empty one can be begun.
        if path is None or not Path(output.path).stat().st_size:
            return finished
        manifest.check_same_job(path)
        if self._config.retry_errors and finished.num_failed:
            kept = [(row.offset, row.num_bytes) for row in finished.answered()]
            output.rewrite(output.read(*span) for span in kept)
            finished = FinishedRows.read(output.path)
        return finished

    def _count(self, rows: Sequence[JobRow]) -> None:
        self._tally.total += len(rows)
        self._tally.skipped += sum(row.index in self._finished.rows for row in rows)
        self._listener.on_tally(self._tally)

    def _start(self, writer: RowWriter) -> RunLike | None:
        """Load the weights and plan the run; None if no row needs them, as they take long."""
        requests = self._ask(self._prepared.rows)
        more = self._prepared.more
        if not self._waiting and more is None:
            return None
        self._listener.on_phase(Phase.LOAD)
        engine = self._prepared.model.load_engine()
        self._listener.on_phase(Phase.COMPILE)
        engine.warm_up()
        self._listener.on_phase(Phase.PLAN)
        windows = None if more is None else self._ask_more(more, writer)
        return engine.start(requests, self._listener.on_step, windows, self._finished.rows)

    def _ask(self, rows: Iterable[JobRow]) -> list[Request]:
        """Return the requests of the rows that have one; answers that are not there are awaited."""
        asked = [row for row in rows if row.request is not None]
        done = self._finished.rows
        self._waiting |= {row.index: row for row in asked if row.index not in done}
        return [row.request for row in asked if row.request is not None]

    def _ask_more(
        self, windows: Iterable[Sequence[JobRow]], writer: RowWriter
    ) -> Iterator[list[Request]]:
        """Yield the requests of one window after the other, while the engine runs."""
        for rows in windows:
            self._count(rows)
            self._write_failed(rows, writer)
            yield self._ask(rows)

    def _answer(self, writer: RowWriter, run: RunLike | None) -> dict[str, Any]:
        """Write every row: first those that cannot be asked, then the answers as they come."""
        self._listener.on_phase(Phase.RUN)
        self._write_failed(self._prepared.rows, writer)
        if run is None:
            return empty_engine_report()
        warned = False
        for completion in run:
            row = _asked(self._waiting, completion)
            if completion.error is not None and not warned:
                warned = True  # once: there may be thousands, and each row says its own
                self._listener.on_warning(
                    f"row {row.id!r}, {row.unit} {row.line}, cannot be answered: {completion.error}"
                )
            writer.write(answered_row(row, completion))
            self._tally.note_completion(row, completion)
            self._listener.on_tally(self._tally)
        return run.report()

    def _write_failed(self, rows: Iterable[JobRow], writer: RowWriter) -> None:
        """Write the rows that cannot be asked."""
        for row in rows:
            if row.error is not None and row.index not in self._finished.rows:
                writer.write(failed_row(row, row.error))
                self._tally.note_failed(row, row.error)
                self._listener.on_tally(self._tally)

    def _report(self, engine_report: dict[str, Any]) -> dict[str, Any]:
        config = self._config
        return job_report(
            engine_report,
            self._tally,
            template_advice=check_sharing(config, engine_report, self._prepared.model.tokenizer),
            ignore_eos=config.sampling.ignore_eos,
        )

    def _write_report(self, report: dict[str, Any]) -> None:
        path = self._config.report_path
        if path is not None:
            _write(path, report)

    def _write_snapshot(self, snapshot: Snapshot | None) -> None:
        """Write where every block was; a view of what is done, so a failure costs only that."""
        path = self._config.snapshot_path
        if path is None:
            return
        try:
            if snapshot is None:
                path.unlink(missing_ok=True)  # of another run
            else:
                replace_file(path, [snapshot.to_bytes()])
        except OSError as error:
            self._listener.on_warning(
                f"{path} cannot be written ({error.strerror}): inspect-cache will have no blocks "
                "to show of this run"
            )

    def _write_manifest(self, manifest: Manifest, status: JobStatus) -> None:
        path = self._config.manifest_path
        if path is not None:
            _write(path, manifest.to_json(status, self._tally.rows()))


def _asked(waiting: dict[int, JobRow], completion: Completion) -> JobRow:
    """Return the row that `completion` answers, once."""
    row = waiting.pop(completion.request.index, None)
    if row is None:
        raise EngineError(
            f"row {completion.request.index} was answered twice or never asked; please report this"
        )
    if completion.error is None and len(completion.outputs) != completion.request.params.n:
        raise EngineError(
            f"row {row.index} has {len(completion.outputs)} answers instead of "
            f"{completion.request.params.n}; please report this"
        )
    return row


def _write(path: Path, value: dict[str, Any]) -> None:
    try:
        replace_json(path, value)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror})", error) from error
