"""Whether a run's prompts had little in common only because of what comes early in them."""

from dataclasses import replace
from itertools import accumulate

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.reader import is_repeatable
from pagedrun.paged.job.interfaces import TokenizerLike
from pagedrun.paged.job.planned.row_sample import sample_rows
from pagedrun.paged.job.prompts.template_advice import TemplateAdvisor
from pagedrun.paged.report.record.report_sections import EngineReport, TemplateAdvice
from pagedrun.paged.values.errors import PagedrunError

# Trying takes about half a second: not for runs that are nearly as short, nor where sharing works.
MIN_RUN_SECONDS = 10.0
ENOUGH_SHARED = 0.5
NUM_ROWS = 100
MAX_CHARS = 500_000  # of all of them


def check_sharing(
    config: JobConfig,
    engine_report: EngineReport,
    tokenizer: TokenizerLike,
    max_chars: int = MAX_CHARS,
) -> TemplateAdvice | None:
    """Return what `TemplateAdvisor` finds on the first rows; None where it is not worth a try.

    max_chars: of all rows that are tried.
    """
    if engine_report["prefix"]["possible_hit_rate"] >= ENOUGH_SHARED:
        return None
    if engine_report["time"]["run_s"] < MIN_RUN_SECONDS or not is_repeatable(*config.inputs):
        return None
    limit = min(config.limit or NUM_ROWS, NUM_ROWS)
    try:
        rows = sample_rows(replace(config, limit=limit))
    except (PagedrunError, OSError):  # the input has changed since; every row is answered
        return None
    num_chars = accumulate(len(str(row)) for row in rows)
    rows = [row for row, total in zip(rows, num_chars, strict=True) if total <= max_chars]
    return TemplateAdvisor(config.prompts, config.sampling, tokenizer).advise(rows)
