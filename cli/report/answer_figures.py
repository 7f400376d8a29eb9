"""What the answer to a question took, in a line."""

from typing import TYPE_CHECKING

from pagedrun.paged.values.request import FinishReason

if TYPE_CHECKING:
    from pagedrun.paged.job.question import Answer  # which imports torch


def answer_line(answer: "Answer", wall_s: float) -> str:
    """Return how many tokens there were, how fast they came, what the whole command took, and
    whether the answer was cut."""
    completion = answer.completion
    assert completion is not None
    count = sum(len(output.token_ids) for output in completion.outputs)
    told = [
        f"{len(completion.request.prompt_token_ids):,} prompt tokens",
        f"{count:,} generated in {answer.run_s:.1f} s{_pace(answer, count)}",
        f"{wall_s:.1f} s in all, {answer.load_s:.1f} s of it loading the model",
    ]
    if FinishReason.LENGTH in completion.finish_reasons:
        told.append("cut; raise --max-tokens for more")
    return "; ".join(told)


def _pace(answer: "Answer", count: int) -> str:
    """Return when the first token came and how fast the others; nothing where there are none."""
    rest_s = answer.run_s - answer.first_token_s
    if count < 2 or not answer.first_token_s or rest_s <= 0:
        return ""
    return f" (first after {answer.first_token_s:.2f} s, then {(count - 1) / rest_s:.1f} tokens/s)"
