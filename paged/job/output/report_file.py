"""The report of a job: the engine's figures, completed with what only the job knows."""

from pagedrun.paged.job.progress.tally import Tally
from pagedrun.paged.report.record.advice import Advice, advise
from pagedrun.paged.report.record.report_sections import (
    AdviceEntry,
    AnswersPart,
    CopyCounts,
    EngineReport,
    JobReport,
    KVFigures,
    MemoryFigures,
    PreemptionCounts,
    PrefixFigures,
    ScoredPromptsPart,
    Section,
    TemplateAdvice,
    TimeFigures,
    TokenFigures,
    groups_part,
    section_of,
)
from pagedrun.paged.report.record.weight_figures import WeightFigures
from pagedrun.paged.values.errors import as_flag, spelled


def empty_engine_report() -> EngineReport:
    """Return the engine's part of the report for a run in which it had nothing to do."""
    return {
        "tokens": _zeros(TokenFigures),
        "time": _zeros(TimeFigures),
        "kv": {**_zeros(KVFigures), **groups_part([])},
        "prefix": _zeros(PrefixFigures),
        "copy_on_write": _zeros(CopyCounts),
        "preemptions": _zeros(PreemptionCounts),
        "memory": _zeros(MemoryFigures),
        "weights": _zeros(WeightFigures),
        "timeline": [],
        "config": {},
        "hardware": {},
        "finish_reasons": {},
    }


def job_report(
    engine_report: EngineReport,
    tally: Tally,
    *,
    template_advice: TemplateAdvice | None = None,
    ignore_eos: bool = False,
) -> JobReport:
    """Return the whole report, rows first, what is off last.

    `template_advice` is what `TemplateAdvisor` found, None if it was not asked. With `ignore_eos`
    answers were meant to be as long as they may be.
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


def _zeros(kind: type[Section]) -> Section:
    return section_of(kind, lambda name: 0)
