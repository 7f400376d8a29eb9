"""ResumedRun: what an earlier run of the same job has left, for this one to go on with."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.output.finished_rows import FinishedRows
from pagedrun.paged.job.output.made_files import all_rows_of
from pagedrun.paged.job.output.manifest import Manifest
from pagedrun.paged.job.output.output_file import OutputFile
from pagedrun.paged.job.output.output_layout import OutputLayout
from pagedrun.paged.job.output.same_job import check_same_job
from pagedrun.paged.job.output.saved_manifest import at_time_of, raw_as_in, read_manifest
from pagedrun.paged.values.errors import UsageError, option


class ResumedRun:
    """The run that began the claimed `output`, if any did.

    A file without a whole line may still be somebody's: only an empty one can be begun.
    """

    def __init__(self, config: JobConfig, layout: OutputLayout, output: OutputFile) -> None:
        self._config = config
        self._layout = layout
        self._output = output
        has_bytes = bool(Path(output.path).stat().st_size)
        self._manifest = config.manifest_path if has_bytes else None

    def with_its_prompts(self) -> JobConfig:
        """Return the job with the prompts of that run, whenever it was, raw if they were."""
        config = at_time_of(self._config, self._manifest)
        made_by = config.manifest_path if self._layout.is_made else None
        return raw_as_in(config, self._manifest or made_by)

    def finished_rows(
        self, manifest: Manifest, hold: Callable[[], AbstractContextManager[None]]
    ) -> FinishedRows:
        """Return the rows that are there; with `retry_errors` failed ones are taken out.

        `manifest` is that of this run; `hold` keeps signals away. Raises `UsageError` if the output
        is of another job.
        """
        finished = FinishedRows.read(self._output.path)
        made_by = self._config.manifest_path
        if self._manifest is None and self._layout.is_made and made_by is not None:
            return all_rows_of(self._layout, manifest, made_by)
        if self._manifest is None:
            return finished
        check_same_job(manifest, self._manifest)
        self._refuse_rows_without_columns(finished)
        if self._config.retry_errors and finished.num_failed:
            kept = [(row.offset, row.num_bytes) for row in finished.answered()]
            with hold():
                self._output.rewrite(self._output.read(*span) for span in kept)
            finished = FinishedRows.read(self._output.path)
        return finished

    def _refuse_rows_without_columns(self, finished: FinishedRows) -> None:
        """Refuse a journal of version 0.2 or older, of which no table of all columns is made."""
        if not self._layout.files or not finished.rows or self._manifest is None:
            return
        if "answer_column" not in read_manifest(self._manifest).parameters:
            raise UsageError(
                f"{option('resume')}: the rows in {self._layout.journal} were kept by an older "
                "version, without all columns of the input; finish the run with that version, "
                f"or pass {option('overwrite')} instead of {option('resume')}"
            )
