"""How a job comes by the answers of the earlier run that it names, and by its time."""

from pagedrun.paged.job.config import MANIFEST_SUFFIX, JobConfig
from pagedrun.paged.job.earlier.earlier_rows import EarlierRows
from pagedrun.paged.job.earlier.questions import Questions
from pagedrun.paged.job.earlier.same_computation import check_same_computation
from pagedrun.paged.job.output.manifest import Manifest
from pagedrun.paged.job.output.saved_manifest import at_time_of
from pagedrun.paged.job.progress.listener import JobListener


def at_its_time(config: JobConfig) -> JobConfig:
    """Return the job with prompts of the time of the run that it takes answers from, if any."""
    old = config.from_output
    return at_time_of(config, None if old is None else old.with_name(old.name + MANIFEST_SUFFIX))


def open_earlier(
    config: JobConfig,
    manifest: Manifest,
    questions: Questions,
    vocab_size: int,
    listener: JobListener,
) -> EarlierRows | None:
    """Return the rows that a job takes answers from, None if it takes none.

    Raises `UsageError` if they cannot be used.
    """
    if config.from_output is None:
        return None
    check_same_computation(manifest, config.from_output)
    rows = EarlierRows(config.from_output, questions, vocab_size)
    rows.warn_of_changes(listener)
    return rows
