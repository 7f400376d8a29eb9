"""The job: a file of rows in, a file of answers out, and beside it what happened."""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.control.disk_space import missing_space, space_warning
from pagedrun.paged.job.control.signals import JobInterrupted, SignalGuard
from pagedrun.paged.job.control.ward import JobWard
from pagedrun.paged.job.inputs.reader import file_stamp, open_rows
from pagedrun.paged.job.inputs.reading_stop import ReadingStop
from pagedrun.paged.job.interfaces import ModelOpener, OpenModel, RunLike
from pagedrun.paged.job.listener import JobListener, Phase, SilentListener
from pagedrun.paged.job.output.finished_rows import FinishedRows
from pagedrun.paged.job.output.manifest import JobStatus, Manifest
from pagedrun.paged.job.output.output_file import OutputError, OutputFile
from pagedrun.paged.job.output.report_file import empty_engine_report, job_report
from pagedrun.paged.job.output.same_job import check_same_job
from pagedrun.paged.job.output.saved_manifest import read_prompt_time
from pagedrun.paged.job.output.side_files import SideFiles
from pagedrun.paged.job.output.writer import RowWriter
from pagedrun.paged.job.output.written_row import answered_row, failed_row
from pagedrun.paged.job.prepare import Prepared, check_side_files, prepare, warn_of_rows
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.job.sharing_check import check_sharing
from pagedrun.paged.job.tally import Tally
from pagedrun.paged.report.record.report_sections import EngineReport, JobReport
from pagedrun.paged.report.record.snapshot import Snapshot
from pagedrun.paged.report.record.timeline import StepRecord
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import EngineError, EngineStalled, UsageError
from pagedrun.paged.values.option_names import as_flag, option, spelled
from pagedrun.paged.values.request import Completion, Request


@dataclass(frozen=True, slots=True)
class JobResult:
    """A finished job: its report, where that and the manifest were written, if anywhere, and what
    became of every block; None if no row needed the engine.
    """

    report: JobReport
    num_failed: int
    report_path: Path | None
    manifest_path: Path | None
    snapshot: Snapshot | None = None


def run_job(
    config: JobConfig,
    listener: JobListener | None = None,
    open_model: ModelOpener | None = None,
    guard: SignalGuard | None = None,
) -> JobResult:
    """Answer every row of the input; one output row for each, whatever becomes of it.

    Nothing is written before input, prompts and model have been checked and the run is planned.
    Raises `UsageError` for what is refused, `EngineError` if the engine cannot go on,
    `OutputError` if the output cannot, `JobInterrupted` for a signal; rows written by then stay,
    and the output is whole lines. `guard` is one that is entered already; None for one that lasts
    as long as the job and has no watchdog.
    """
    listener = listener or SilentListener()
    check_side_files(config)
    with ExitStack() as stack:
        guard = guard or stack.enter_context(SignalGuard())
        with guard.hold():  # so that no file is left that nobody knows of
            output = OutputFile.claim(
                config.output,
                overwrite=config.overwrite,
                resume=config.resume,
                input_name=config.input,
            )
            stack.enter_context(output)
            ward = JobWard(output, config.stall_timeout)
            guard.look_after(ward)
        if config.ordered and not output.is_regular:
            raise UsageError(
                f"{option('ordered')} sorts the output at the end; name a file with -o"
            )
        if config.resume and not output.is_regular:
            raise UsageError(f"{option('resume')} goes on with a file; name it with -o")
        config = _at_its_time(config, output)
        stamp = file_stamp(config.input)
        stop = ReadingStop()
        with open_rows(config.input, config.max_line_bytes, stop) as source:
            prepared = prepare(config, source, listener, open_model or _open_local, stop)
            result = _Job(config, listener, guard, ward, prepared, stop).run(output)
        if file_stamp(config.input) != stamp:
            listener.on_warning(
                f"{config.input} was changed during the run; the answers are those of its rows "
                "as they were when they were read"
            )
        return result


def _at_its_time(config: JobConfig, output: OutputFile) -> JobConfig:
    """Return the job with the prompts of the run that it goes on with, whenever that was."""
    path = _manifest_of(config, output) if config.resume else None
    time = None if path is None else read_prompt_time(path)
    return config if time is None else replace(config, prompts=replace(config.prompts, time=time))


def _manifest_of(config: JobConfig, output: OutputFile) -> Path | None:
    """Return where the manifest is of the run that began this output; None if none did.

    A file without a whole line may still be somebody's: only an empty one can be begun.
    """
    return config.manifest_path if Path(output.path).stat().st_size else None


def _open_local(
    engine_config: EngineConfig, tokenizer_folder: Path, chat_template: str | None
) -> OpenModel:
    from pagedrun.paged.job.model import LocalModel  # imports torch

    return LocalModel(engine_config, tokenizer_folder, chat_template)


class _Job:
    """The second half of a job: all is checked, the rows are to be answered."""

    def __init__(
        self,
        config: JobConfig,
        listener: JobListener,
        guard: SignalGuard,
        ward: JobWard,
        prepared: Prepared,
        stop: ReadingStop,
    ) -> None:
        self._config = config
        self._listener = listener
        self._guard = guard
        self._ward = ward
        self._prepared = prepared
        self._stop = stop
        self._files = SideFiles(config, listener)
        self._tally = Tally(total=0)
        self._waiting: dict[int, JobRow] = {}  # rows that the engine was asked, by index
        self._read: deque[Sequence[JobRow]] = deque()  # windows that the run has not taken yet
        self._finished = FinishedRows()  # by an earlier run

    def run(self, output: OutputFile) -> JobResult:
        prepared = self._prepared
        manifest = Manifest.start(
            self._config, prepared.source(), prepared.max_model_len, prepared.model.arithmetic()
        )
        if self._config.resume:
            self._finished = self._go_on(output, manifest)
        self._count(prepared.rows)
        self._warn_of_little_space(output)
        writer = RowWriter(output, ordered=self._config.ordered, hold=self._guard.hold)
        run = self._start(writer)
        try:
            # What a finished run has left beside its output tells of that run; it stays.
            has_nothing_to_do = run is None and self._finished.rows and self._files.has_report
            with self._guard.hold():
                writer.begin(self._finished)
                if not has_nothing_to_do:
                    self._files.begin()
                self._files.write_manifest(manifest, JobStatus.RUNNING, self._tally)
                self._ward.begin(lambda: self._leave(writer, manifest))
            engine_report = self._answer(writer, run)
            self._tally.check()
            manifest = manifest.having_read(prepared.source())
            self._listener.on_phase(Phase.FINISH)
            writer.finish(self._tally.num_rows)
            report = self._report(engine_report)
            snapshot = None if run is None else run.snapshot()
            with self._guard.hold():
                if not has_nothing_to_do:
                    self._files.write_report(report)
                if snapshot is not None:
                    self._files.write_snapshot(snapshot)
                self._files.write_manifest(manifest, JobStatus.FINISHED, self._tally)
        except BaseException as error:
            self._explain(error, writer)
            interrupted = isinstance(error, JobInterrupted | KeyboardInterrupt)
            status = JobStatus.INTERRUPTED if interrupted else JobStatus.FAILED
            with self._guard.hold():
                self._save(writer, manifest, status)
            raise
        finally:
            self._stop.set()
            if run is not None:
                run.close()
        num_failed = self._tally.failed + self._finished.num_failed
        paths = self._config.report_path, self._config.manifest_path
        return JobResult(report, num_failed, *paths, snapshot)

    def _explain(self, error: BaseException, writer: RowWriter) -> None:
        """Add to `error` what it has left, and what to do."""
        if isinstance(error, EngineStalled):
            error.add_note(self._files.write_state(error.state))
        error.add_note(self._so_far(writer))
        if isinstance(error, OutputError):
            left = self._tally.total - self._tally.num_rows
            missing = missing_space(error, writer.num_bytes, self._tally.num_rows, left)
            if missing:
                error.add_note(missing)

    def _so_far(self, writer: RowWriter) -> str:
        """Return how far the job came, and how the rest is done."""
        rows, rest = self._tally, ""
        if writer.is_resumable:
            instead = " in place of --overwrite" if self._config.overwrite else ""
            rest = f"; the same command with --resume{instead} does the rest"
        return f"{rows.num_rows:,} of {rows.total:,} rows are written and whole{rest}"

    def _leave(self, writer: RowWriter, manifest: Manifest) -> str:
        """Save what there is, from another thread than the job's: the process is about to end."""
        self._save(writer, manifest, JobStatus.INTERRUPTED)
        return self._so_far(writer)

    def _save(self, writer: RowWriter, manifest: Manifest, status: JobStatus) -> None:
        with suppress(OutputError):  # the first error is the one to tell
            writer.sync()
        with suppress(OutputError):
            self._files.write_manifest(manifest, status, self._tally)

    def _go_on(self, output: OutputFile, manifest: Manifest) -> FinishedRows:
        """Return what an earlier run of the same job has left; with `retry_errors` its failed rows
        are taken out. Raises `UsageError` if the output is of another job.
        """
        finished = FinishedRows.read(output.path)
        path = _manifest_of(self._config, output)
        if path is None:
            return finished
        check_same_job(manifest, path)
        if self._config.retry_errors and finished.num_failed:
            kept = [(row.offset, row.num_bytes) for row in finished.answered()]
            with self._guard.hold():
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
        windows = None if more is None else map(self._read_ahead, more)

        def on_step(record: StepRecord) -> None:
            self._ward.step()
            writer.sync_if_due()
            self._listener.on_step(record)

        def warn(message: str) -> None:
            self._listener.on_warning(spelled(message, as_flag))

        def on_window() -> None:
            self._take_window(writer)

        return engine.start(requests, on_step, windows, self._finished.rows, warn, on_window)

    def _ask(self, rows: Iterable[JobRow]) -> list[Request]:
        """Return the requests of the rows that have one; answers that are not there are awaited."""
        done = self._finished.rows
        self._waiting |= {
            row.index: row for row in rows if row.request is not None and row.index not in done
        }
        return _requests(rows)

    def _read_ahead(self, rows: Sequence[JobRow]) -> list[Request]:
        """Return the requests of a window that was read; called in the planner's thread."""
        self._read.append(rows)
        return _requests(rows)

    def _take_window(self, writer: RowWriter) -> None:
        """Take note of a window's rows, which the run begins with now."""
        rows = self._read.popleft()
        self._ward.step()
        warn_of_rows(rows, self._prepared.max_model_len, self._listener)
        self._count(rows)
        self._write_failed(rows, writer)
        self._ask(rows)

    def _answer(self, writer: RowWriter, run: RunLike | None) -> EngineReport:
        """Write every row: first those that cannot be asked, then the answers as they come."""
        self._listener.on_phase(Phase.RUN)
        self._write_failed(self._prepared.rows, writer)
        self._prepared = replace(self._prepared, rows=())  # those that are answered can go now
        if run is None:
            return empty_engine_report()
        self._ward.run(lambda: self._files.write_state(run.state()))
        warned = False
        for completion in run:
            row = _asked(self._waiting, completion)
            if completion.error is not None and not warned:
                warned = True  # once: there may be thousands, and each row says its own
                self._listener.on_warning(
                    f"row {row.id!r}, {row.unit} {row.line}, cannot be answered: {completion.error}"
                )
            with self._guard.hold():  # written and counted, or neither
                writer.write(answered_row(row, completion))
                self._tally.note_completion(row, completion)
            self._listener.on_tally(self._tally)
        self._ward.rest()
        return run.report()

    def _write_failed(self, rows: Iterable[JobRow], writer: RowWriter) -> None:
        """Write the rows that cannot be asked."""
        for row in rows:
            if row.error is not None and row.index not in self._finished.rows:
                with self._guard.hold():
                    writer.write(failed_row(row, row.error))
                    self._tally.note_failed(row, row.error)
                self._listener.on_tally(self._tally)

    def _warn_of_little_space(self, output: OutputFile) -> None:
        finished = self._finished.rows
        rows = [row for row in self._prepared.rows if row.index not in finished]
        warning = space_warning(output, rows, ordered=self._config.ordered)
        if warning is not None:
            self._listener.on_warning(warning)

    def _report(self, engine_report: EngineReport) -> JobReport:
        config = self._config
        return job_report(
            engine_report,
            self._tally,
            template_advice=check_sharing(config, engine_report, self._prepared.model.tokenizer),
            ignore_eos=config.sampling.ignore_eos,
        )


def _requests(rows: Iterable[JobRow]) -> list[Request]:
    return [row.request for row in rows if row.request is not None]


def _asked(waiting: dict[int, JobRow], completion: Completion) -> JobRow:
    """Return the row that `completion` answers, once."""
    row = waiting.pop(completion.request.index, None)
    if row is None:
        raise EngineError(
            f"row {completion.request.index} was answered twice or never asked; please report this"
        )
    vote, num_asked = completion.vote, completion.request.params.n
    expected = num_asked if vote is None else vote.drawn
    num_answers = len(completion.scores or completion.outputs)
    if completion.error is None and num_answers != expected:
        raise EngineError(
            f"row {row.index} has {num_answers} answers instead of {expected}; please report this"
        )
    return row
