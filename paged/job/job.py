"""The job: a file of rows in, a file of answers out, and beside it what happened."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedrun.paged.engine_config import EngineConfig
from pagedrun.paged.errors import EngineError, UsageError
from pagedrun.paged.job.atomic import replace_json
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.interfaces import ModelOpener, OpenModel, RunLike
from pagedrun.paged.job.listener import JobListener, Phase, SilentListener
from pagedrun.paged.job.manifest import JobStatus, Manifest
from pagedrun.paged.job.output_file import OutputError, OutputFile
from pagedrun.paged.job.output_row import answered_row, failed_row
from pagedrun.paged.job.prepare import Prepared, check_side_files, prepare
from pagedrun.paged.job.report_file import empty_engine_report, job_report
from pagedrun.paged.job.requests import JobRow
from pagedrun.paged.job.signals import JobInterrupted, SignalGuard
from pagedrun.paged.job.tally import Tally
from pagedrun.paged.job.writer import RowWriter
from pagedrun.paged.request import Completion


@dataclass(frozen=True, slots=True)
class JobResult:
    """A finished job: its report, and where that and the manifest were written, if anywhere."""

    report: dict[str, Any]
    num_failed: int
    report_path: Path | None
    manifest_path: Path | None


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
            config.output, overwrite=config.overwrite, input_name=config.input
        )
        try:
            if config.ordered and not output.is_regular:
                raise UsageError("--ordered sorts the output at the end; name a file with -o")
            prepared = prepare(config, listener, open_model or _open_local)
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
        self._tally = Tally(total=len(prepared.rows))

    def run(self, output: OutputFile) -> JobResult:
        prepared = self._prepared
        self._listener.on_tally(self._tally)
        run = self._start()
        manifest = Manifest.start(self._config, prepared.source, prepared.max_model_len)
        writer = RowWriter(output, ordered=self._config.ordered, hold=self._guard.hold)
        try:
            with self._guard.hold():
                writer.begin()
                self._write_manifest(manifest, JobStatus.RUNNING)
            engine_report = self._answer(writer, run)
            self._tally.check()
            self._listener.on_phase(Phase.FINISH)
            writer.finish()
        except BaseException as error:
            interrupted = isinstance(error, JobInterrupted | KeyboardInterrupt)
            status = JobStatus.INTERRUPTED if interrupted else JobStatus.FAILED
            with suppress(OutputError), self._guard.hold():  # the first error is the one to tell
                writer.sync()
                self._write_manifest(manifest, status)
            raise
        report = job_report(engine_report, self._tally)
        with self._guard.hold():
            self._write_report(report)
            self._write_manifest(manifest, JobStatus.FINISHED)
        return JobResult(
            report, self._tally.failed, self._config.report_path, self._config.manifest_path
        )

    def _start(self) -> RunLike | None:
        """Load the weights and plan the run; None if no row needs them, as they take long."""
        requests = [row.request for row in self._prepared.rows if row.request is not None]
        if not requests:
            return None
        self._listener.on_phase(Phase.LOAD)
        engine = self._prepared.model.load_engine()
        self._listener.on_phase(Phase.COMPILE)
        engine.warm_up()
        self._listener.on_phase(Phase.PLAN)
        return engine.start(requests, self._listener.on_step)

    def _answer(self, writer: RowWriter, run: RunLike | None) -> dict[str, Any]:
        """Write every row: first those that cannot be asked, then the answers as they come."""
        self._listener.on_phase(Phase.RUN)
        waiting: dict[int, JobRow] = {}
        for row in self._prepared.rows:
            if row.error is None:
                waiting[row.index] = row
                continue
            writer.write(failed_row(row, row.error))
            self._tally.note_failed(row)
            self._listener.on_tally(self._tally)
        if run is None:
            return empty_engine_report()
        for completion in run:
            row = _asked(waiting, completion)
            writer.write(answered_row(row, completion))
            self._tally.note_completion(row, completion)
            self._listener.on_tally(self._tally)
        return run.report()

    def _write_report(self, report: dict[str, Any]) -> None:
        path = self._config.report_path
        if path is not None:
            _write(path, report)

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
