"""Job: answers every row of an input file and writes the output and its side files."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.earlier_run import (
    EarlierRows,
    RequestDigests,
    RowDigests,
    open_earlier,
    with_earlier_prompt_time,
)
from pagedrun.paged.job.inputs.byte_streams import ReadCancellation
from pagedrun.paged.job.inputs.reader import file_stamp, open_inputs
from pagedrun.paged.job.inputs.row import InputFacts
from pagedrun.paged.job.interfaces import ModelOpener, OpenModel, RunLike
from pagedrun.paged.job.open_model import PooledFolder
from pagedrun.paged.job.output.answer_rows import AnswerRows, ResultRows
from pagedrun.paged.job.output.kept_tables import KeptTables
from pagedrun.paged.job.output.manifest import JobStatus, Manifest
from pagedrun.paged.job.output.output_file import OutputError, OutputFile
from pagedrun.paged.job.output.output_layout import OutputLayout, clear_files, folder_for
from pagedrun.paged.job.output.pooled_rows import PooledRows
from pagedrun.paged.job.output.row_columns import RowShaper
from pagedrun.paged.job.output.saved_rows import FinishedRows
from pagedrun.paged.job.output.side_files import SideFiles, job_report
from pagedrun.paged.job.output.writer import RowWriter, missing_space, space_warning
from pagedrun.paged.job.planned.template_advice import check_sharing
from pagedrun.paged.job.prepare import Prepared, check_side_files, prepare, warn_of_rows
from pagedrun.paged.job.progress import (
    AnswerPreview,
    FirstAnswers,
    JobListener,
    PendingRows,
    Phase,
    Tally,
)
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.job.resume import ResumedRun
from pagedrun.paged.job.signals import DEADLINE, JobInterrupted, JobMonitor, SignalGuard
from pagedrun.paged.metrics.report_sections import EngineReport, JobReport, empty_engine_report
from pagedrun.paged.metrics.snapshot import Snapshot
from pagedrun.paged.metrics.timeline import RunHooks, StepRecord
from pagedrun.paged.values.engine_config import Deadline, EngineConfig
from pagedrun.paged.values.errors import (
    EngineStalled,
    UsageError,
    as_flag,
    option,
    spelled,
)
from pagedrun.paged.values.request import Request


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of a finished job: its report, the paths of report and manifest, and the block
    snapshot.

    `snapshot` is None if no row needed the engine or replicas ran it. `first_answers` belong to the
    first rows written by this run, in input order. `journal_path` is the journal kept beside files
    with failed rows, so that these can be retried.
    """

    report: JobReport
    num_failed: int
    report_path: Path | None
    manifest_path: Path | None
    snapshot: Snapshot | None = None
    first_answers: tuple[AnswerPreview, ...] = ()
    journal_path: Path | None = None


def run_job(
    config: JobConfig,
    listener: JobListener | None = None,
    open_model: ModelOpener | None = None,
    guard: SignalGuard | None = None,
) -> JobResult:
    """Answer every row of the input, with one output row for each.

    Nothing is written before input, prompts and model are checked and the run is planned. Raises
    `UsageError` for refused settings or input, `EngineError` if the engine fails, `OutputError` if
    writing fails, `JobInterrupted` for a signal; finished rows stay, in complete lines. `guard` is
    an entered guard; None for one that lasts as long as the job and has no watchdog.
    """
    listener = listener or JobListener()
    check_side_files(config)
    layout = OutputLayout.of(config)
    layout.check(config)
    with ExitStack() as stack:
        guard = guard or stack.enter_context(SignalGuard())
        deadline = job_deadline(config, guard)
        if deadline is not None:
            guard.end_at(deadline.at)
        with guard.hold():  # so that every created file has an owner to remove it
            if config.out_dir is not None:
                stack.enter_context(folder_for(config.out_dir))
            output = OutputFile.claim(
                layout.journal,
                overwrite=config.overwrite,
                resume=config.resume,
                input_name=config.input,
            )
            stack.enter_context(output)
            monitor = JobMonitor(output.close, config.stall_timeout)
            guard.protect(monitor)
        if config.ordered and not output.is_regular:
            raise UsageError(
                f"{option('ordered')} sorts the output at the end; name a file with -o"
            )
        if config.resume and not output.is_regular:
            raise UsageError(f"{option('resume')} continues a file; name it with -o")
        config = with_earlier_prompt_time(config)
        resumed = ResumedRun(config, layout, output) if config.resume else None
        config = config if resumed is None else resumed.with_prompt_settings()
        stamps = [file_stamp(name) for name in config.inputs]
        stop = ReadCancellation()
        kept = None
        if layout.keeps_tables:
            kept = stack.enter_context(KeptTables(Path(layout.journal).resolve().parent))
        keep = None if kept is None else kept.add
        with open_inputs(config.inputs, config.reading, stop, keep) as source:
            prepared = prepare(
                config,
                source,
                listener,
                open_model or _opener_of(config),
                stop,
                keeps_columns=layout.keeps_columns,
            )
            job = _Job(config, layout, listener, guard, monitor, prepared, stop, kept)
            result = job.run(output, resumed)
        for name, stamp in zip(config.inputs, stamps, strict=True):
            if file_stamp(name) != stamp:
                listener.on_warning(
                    f"{name} was changed during the run; the answers belong to the rows as they "
                    "were read"
                )
        return result


def _opener_of(config: JobConfig) -> ModelOpener:
    """Return the opener of a job's model; it imports torch when it is called."""

    def opened(
        engine_config: EngineConfig, tokenizer_folder: Path, chat_template: str | None
    ) -> OpenModel:
        from pagedrun.paged.job.model import (
            LocalModel,
            PooledModel,
            ReplicatedModel,
            ReplicatedPooledModel,
        )

        folder = engine_config, tokenizer_folder, chat_template
        is_local = config.replicas.replicas is None
        if config.pooled is not None:
            task = engine_config, tokenizer_folder, config.pooled
            if is_local:
                return PooledModel(*task)
            return ReplicatedPooledModel(*task, config.replicas, config.stall_timeout)
        if is_local:
            return LocalModel(*folder)
        return ReplicatedModel(*folder, config.replicas, config.stall_timeout)

    return opened


def _result_rows(config: JobConfig, layout: OutputLayout, model: OpenModel) -> ResultRows:
    """Return the rows of a job's output."""
    if config.pooled is None:
        return AnswerRows(layout)
    assert isinstance(model, PooledFolder), "opened for a task"
    return PooledRows(config.pooled, layout, model.spec.pooler.labels)


class _Job:
    """Second half of a job: the input is checked, the rows are to be answered."""

    def __init__(
        self,
        config: JobConfig,
        layout: OutputLayout,
        listener: JobListener,
        guard: SignalGuard,
        monitor: JobMonitor,
        prepared: Prepared,
        stop: ReadCancellation,
        kept: KeptTables | None,
    ) -> None:
        self._config = config
        self._kept = kept
        self._layout = layout
        self._listener = listener
        self._guard = guard
        self._monitor = monitor
        self._prepared = prepared
        self._stop = stop
        self._files = SideFiles(config, listener)
        self._tally = Tally(total=0)
        self._first = FirstAnswers()
        self._waiting = PendingRows()
        self._read: deque[Sequence[JobRow]] = deque()  # windows not yet taken by the run
        self._has_read_all = not prepared.has_more  # whether `_read` has had the last window
        self._finished = FinishedRows()  # by an earlier run
        self._deadline = job_deadline(config, guard)
        self._has_begun = False  # until then the manifest belongs to an earlier run
        self._questions = RequestDigests(prepared.model.tokenizer.chat_template)
        self._digests = RowDigests(layout.digests, self._questions, listener)
        self._earlier: EarlierRows | None = None
        self._given: dict[str, None] = {}  # input columns of the rows
        self._shaper = RowShaper(layout.columns) if layout.streams_columns else None
        self._rows = _result_rows(config, layout, prepared.model)

    def run(self, output: OutputFile, resumed: ResumedRun | None) -> JobResult:
        prepared = self._prepared
        manifest = Manifest.start(
            self._config, prepared.source(), prepared.max_model_len, prepared.model.arithmetic()
        )
        if resumed is not None:
            self._finished = resumed.finished_rows(manifest, self._guard.hold)
            manifest = replace(manifest, files=resumed.files)
        size, listener = prepared.model.config.vocab_size, self._listener
        self._earlier = open_earlier(self._config, manifest, self._questions, size, listener)
        self._tally.has_earlier = self._earlier is not None
        self._check_columns()
        self._count(prepared.rows)
        if not prepared.has_more:
            self._finished.check_end(output.path, self._tally.total)
        self._warn_of_unchecked_lines()
        self._warn_of_little_space(output)
        writer = RowWriter(
            output,
            ordered=self._config.ordered,
            is_journal=bool(self._layout.files),
            hold=self._guard.hold,
            shape=None if self._shaper is None else self._shaper.line,
            before_sync=self._rows.sync if self._rows.has_vectors else None,
            after_sync=self._digests.sync,
        )
        run = self._start(writer)
        try:
            # Report and snapshot of a finished run stay beside its output.
            has_nothing_to_do = run is None and self._finished and self._files.has_report
            with self._guard.hold():
                self._rows.begin(self._finished, output.read)
                writer.begin(self._finished)
                clear_files(self._layout, keep=bool(self._finished))
                # That of complete files says so: without it they could not be resumed.
                self._has_begun = not self._finished.is_all
                if not has_nothing_to_do:
                    self._files.begin()
                self._digests.begin(self._finished, output.read)
                manifest = manifest.with_lines(self._digests.lines)
                if self._has_begun:
                    self._files.write_manifest(manifest, JobStatus.RUNNING, self._tally)
                self._monitor.begin(lambda: self._leave(writer, manifest))
            engine_report = self._answer(writer, run)
            self._guard.end_when_done()
            self._finished.check_end(output.path, self._tally.total)
            self._tally.check()
            manifest = manifest.with_input(prepared.source())
            self._listener.on_phase(Phase.FINISH)
            writer.finish(self._tally.num_rows)
            num_failed = self._tally.failed + self._finished.num_failed
            report = self._report(engine_report)
            report["time"]["wall_s"] = self._wall_s
            snapshot = None if run is None else run.snapshot()
            with self._guard.hold():
                if not has_nothing_to_do:
                    self._files.write_report(report)
                if snapshot is not None:
                    self._files.write_snapshot(snapshot)
            if manifest.files and not self._finished.is_all:
                manifest = replace(manifest, files={})  # about to be replaced
                self._files.write_manifest(manifest, JobStatus.RUNNING, self._tally)
            self._convert(writer)
            if not self._finished.is_all:
                manifest = self._files.with_made(manifest, self._layout.files)
            with self._guard.hold():
                if self._layout.files and not has_nothing_to_do:
                    report["time"]["wall_s"] = self._wall_s  # once more: a conversion may take long
                    self._files.write_report(report)
                manifest = manifest.with_lines(self._digests.lines)
                self._files.write_manifest(manifest, JobStatus.FINISHED, self._tally)
                if self._layout.files and not num_failed:
                    self._digests.remove()
                    output.remove()
                    self._rows.remove()  # not before the journal, which cannot do without it
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
            self._digests.close()
            if self._earlier is not None:
                self._earlier.close()
            self._rows.close()
        paths = self._config.report_path, self._config.manifest_path
        journal = Path(self._layout.journal)
        kept = journal if self._layout.files and journal.exists() else None
        of_one = snapshot if isinstance(snapshot, Snapshot) else None
        return JobResult(report, num_failed, *paths, of_one, self._first.kept(), kept)

    @property
    def _wall_s(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self._guard.began

    def _convert(self, writer: RowWriter) -> None:
        """Convert the journal to the output files, if they differ."""
        warnings: list[str] = []
        if self._layout.files and not self._finished.is_all:
            lines, num_rows = writer.sorted_lines, self._tally.num_rows
            warnings = self._rows.convert(lines, num_rows, self._facts(), self._kept)
        elif self._shaper is not None:
            warnings = self._shaper.warnings()
        for message in warnings:
            self._listener.on_warning(message)

    def _facts(self) -> InputFacts:
        """Return the facts of the input, with the columns of all its rows."""
        facts = self._prepared.facts()
        columns = dict.fromkeys(facts.columns or ()) | self._given
        return replace(facts, columns=tuple(columns))

    def _check_columns(self) -> None:
        """Refuse selected columns that no row has, before anything is loaded."""
        prepared, columns = self._prepared, self._layout.columns
        rows = (dict(row.input) for row in prepared.rows)
        structure, is_all = self._config.sampling.structure, not prepared.has_more
        if self._config.origins.get("answer_column") == "flag" and not columns.has_answer:
            self._listener.on_warning(
                f"{option('answer_column')} has no effect: no column of this output is called "
                f"{columns.answer}; in CSV and Parquet one is, unless others are chosen"
            )
        for message in columns.check(rows, prepared.facts(), structure, is_all=is_all):
            self._listener.on_warning(message)

    def _explain(self, error: BaseException, writer: RowWriter) -> None:
        """Add the state of the output and the next command to `error`."""
        if isinstance(error, EngineStalled):
            error.add_note(self._files.write_state(error.state))
        error.add_note(self._so_far(writer))
        if isinstance(error, OutputError):
            left = self._tally.total - self._tally.num_rows
            missing = missing_space(error, writer.num_bytes, writer.num_rows, left)
            if missing:
                error.add_note(missing)

    def _so_far(self, writer: RowWriter) -> str:
        """Return the progress of the job and the way to resume it."""
        saved, rest = writer.num_rows, ""
        if writer.is_resumable:
            instead = " instead of --overwrite" if self._config.overwrite else ""
            rest = f"; continue with --resume{instead}"
        num_read = self._tally.total + sum(map(len, list(self._read)))
        total = f"{max(num_read, saved):,}"
        if not self._has_read_all:
            total = f"at least {total}"
        return f"{saved:,} of {total} rows saved{rest}"

    def _leave(self, writer: RowWriter, manifest: Manifest) -> str:
        """Save all results in the watchdog's thread, before the process ends."""
        self._save(writer, manifest, JobStatus.INTERRUPTED)
        return self._so_far(writer)

    def _save(self, writer: RowWriter, manifest: Manifest, status: JobStatus) -> None:
        with suppress(OutputError):  # the first error is reported
            writer.sync()
            manifest = manifest.with_lines(self._digests.lines)
        if self._has_begun:
            with suppress(OutputError):
                self._files.write_manifest(manifest, status, self._tally)

    def _count(self, rows: Sequence[JobRow]) -> None:
        if self._layout.columns.includes_input:
            for row in rows:
                self._given.update(dict.fromkeys(row.input))
        self._tally.total += len(rows)
        self._tally.has_more = bool(self._read) or not self._has_read_all
        allowed = (row.request.max_num_generated for row in rows if row.request is not None)
        self._tally.lengths.allow(max(allowed, default=0))
        found = [row.index for row in rows if row.index in self._finished]
        for row in rows if found else ():
            ids = (row.id,) if row.call is None else (row.id, row.call.custom_id)
            self._finished.check_id(self._layout.journal, row.index, ids)
        self._tally.skipped += len(found)
        self._tally.skipped_failed += sum(map(self._finished.has_failed, found))
        self._listener.on_tally(self._tally)

    def _start(self, writer: RowWriter) -> RunLike | None:
        """Load the weights and plan the run; None if no row needs the engine."""
        requests = self._ask(self._prepared.rows)
        has_more = self._prepared.has_more
        if not self._waiting and not has_more:
            return None
        self._guard.catch_bus_errors()
        self._listener.on_phase(Phase.LOAD)
        engine = self._prepared.model.load_engine()
        engine.warm_up(lambda: self._listener.on_phase(Phase.COMPILE))
        self._listener.on_phase(Phase.PLAN)

        def on_step(record: StepRecord) -> None:
            self._monitor.step()
            writer.sync_if_due()
            self._listener.on_step(record)

        def warn(message: str) -> None:
            self._listener.on_warning(spelled(message, as_flag))

        def on_window() -> None:
            self._take_window(writer)

        return engine.start(
            requests,
            more=self._read_ahead() if has_more else None,
            done=self._finished,
            earlier=self._earlier,
            deadline=self._deadline,
            hooks=RunHooks(on_step, on_window, warn),
        )

    def _ask(self, rows: Iterable[JobRow]) -> list[Request]:
        """Return the requests of valid rows; those without an answer become pending."""
        left = (row for row in rows if row.index not in self._finished)
        asked = [row for row in left if row.request is not None]
        if asked and self._finished.is_all:
            raise UsageError(
                f"{option('resume')}: {self._config.input_shown} has more rows than "
                f"{self._layout.shown}, which is finished; pass {option('overwrite')} instead of "
                f"{option('resume')}"
            )
        self._waiting.add(asked)
        return _requests(rows)

    def _read_ahead(self) -> Iterator[list[Request]]:
        """Yield the requests of each further window; called in the planner's thread."""
        for rows in self._prepared.later(self._finished):
            self._read.append(rows)
            self._has_read_all = self._prepared.is_read()
            yield _requests(rows)

    def _take_window(self, writer: RowWriter) -> None:
        """Count the rows of a window when the run takes it."""
        rows = self._read.popleft()
        self._monitor.step()
        warn_of_rows(rows, self._prepared.max_model_len, self._listener)
        self._count(rows)
        self._write_failed(rows, writer)
        self._ask(rows)

    def _answer(self, writer: RowWriter, run: RunLike | None) -> EngineReport:
        """Write every row: invalid ones first, then answers as they finish."""
        self._listener.on_phase(Phase.RUN)
        self._write_failed(self._prepared.rows, writer)
        self._prepared = replace(self._prepared, rows=())  # free the answered ones
        if run is None:
            return empty_engine_report()
        self._monitor.run(lambda: self._files.write_state(run.state()))
        warned = False
        for completion in run:
            row = self._waiting.take(completion)
            if completion.error is not None and not warned:
                warned = True  # once: thousands of rows may fail, each with its own error
                self._listener.on_warning(
                    f"row {row.id!r}, {row.place}, cannot be answered: {completion.error.marked}"
                )
            with self._guard.hold():  # written and counted, or neither
                line = writer.write(self._rows.answered(row, completion))
                self._digests.note(line, completion)
                self._tally.note_completion(row, completion)
            self._tell(self._rows.preview(row, completion))
        self._monitor.rest()
        if run.is_cut and (self._waiting or self._prepared.has_more):
            raise JobInterrupted(DEADLINE)
        return run.report()

    def _write_failed(self, rows: Iterable[JobRow], writer: RowWriter) -> None:
        """Write the invalid rows."""
        for row in rows:
            if row.error is not None and row.index not in self._finished:
                with self._guard.hold():
                    self._digests.note(writer.write(self._rows.failed(row, row.error)), None)
                    self._tally.note_failed(row, row.error)
                self._tell(AnswerPreview.failed(row, row.error))

    def _tell(self, answer: AnswerPreview) -> None:
        """Report a written row to the listener."""
        self._first.add(answer)
        self._listener.on_answer(answer)
        self._listener.on_tally(self._tally)

    def _warn_of_unchecked_lines(self) -> None:
        """Warn of rows to be computed again, and of lines whose changes cannot be noticed."""
        finished, journal = self._finished, self._layout.journal
        if finished.num_unrecorded:
            self._listener.on_warning(
                f"the last {finished.num_unrecorded:,} lines of {journal} were not recorded before "
                "the run ended; their rows are computed again"
            )
        if finished and not (finished.is_checked or finished.is_all):
            self._listener.on_warning(
                f"{self._layout.digests} is missing, so that changes in {journal} cannot be noticed"
            )

    def _warn_of_little_space(self, output: OutputFile) -> None:
        rows = [row for row in self._prepared.rows if row.index not in self._finished]
        is_written_twice = self._config.ordered or bool(self._layout.files)
        warning = space_warning(output, rows, copies=1 + is_written_twice)
        if warning is not None:
            self._listener.on_warning(warning)

    def _report(self, engine_report: EngineReport) -> JobReport:
        config = self._config
        of_prompts = {"prompt_mode": self._prepared.prompt_mode}
        advice = check_sharing(config, engine_report, self._prepared.model.tokenizer)
        return job_report(
            {**engine_report, "config": {**engine_report["config"], **of_prompts}},
            self._tally,
            template_advice=advice,
            ignore_eos=config.sampling.ignore_eos,
        )


def _requests(rows: Iterable[JobRow]) -> list[Request]:
    return [row.request for row in rows if row.request is not None]


def job_deadline(config: JobConfig, guard: SignalGuard) -> Deadline | None:
    """Return the end of the job; its time counts from the creation of the guard."""
    if config.deadline is None:
        return None
    return Deadline(guard.began + config.deadline, config.sampling.seed or 0)
