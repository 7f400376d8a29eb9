"""Step records and a display of progress on a clock of its own."""

from typing import Any

from pagedrun.cli.progress.run_figures import ProgressFiguresListener
from pagedrun.paged.job.progress import AnswerLengths, AnswerPreview, JobListener, Phase, Tally
from pagedrun.paged.metrics.timeline import StepRecord

HOSTILE = "id \x1b[2J [/red] \u202e :smile:"


def record(t: float = 2.0, **changes: Any) -> StepRecord:
    values: dict[str, Any] = {
        "t": t,
        "step": 1,
        "running": 3,
        "waiting": 4,
        "blocks_total": 10,
        "blocks_used": 5,
        "blocks_shared": 1,
        "blocks_cached": 0,
        "tokens": 60,
        "finished": 1,
        "total": 8,
        "prompt_tokens": 200,
        "cached_tokens": 50,
        "generated_tokens": 100,
        "preemptions": 2,
        "prompt_tokens_left": 20,
        "all_prompt_tokens": 600,
    }
    return StepRecord(**{**values, **changes})


def watch_at(times: list[float]) -> ProgressFiguresListener:
    return ProgressFiguresListener(warn=lambda message: None, clock=lambda: times[0])


def answering(**counts: Any) -> Tally:
    """Return the counts of a job whose rows have answers of up to 128 tokens."""
    return Tally(**counts, lengths=AnswerLengths(most_allowed=128))


def play(listener: JobListener) -> None:
    listener.on_phase(Phase.RUN)
    listener.on_tally(answering(total=8, failed=1))
    listener.on_step(record())
    listener.on_answer(AnswerPreview(0, HOSTILE, f"東京{HOSTILE}\n" * 100))
    listener.on_tally(answering(total=8, ok=1, failed=1))
    listener.on_warning(HOSTILE)
