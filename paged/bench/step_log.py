"""StepLog: how long each step of a run took, and what it did."""

from dataclasses import dataclass
from time import perf_counter

from pagedrun.paged.bench.op_timer import OpSeconds, OpTimer
from pagedrun.paged.report.timeline import StepRecord


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `seconds` reaches from the end of the step before, so that steps add up."""

    seconds: float
    prompt_tokens: int  # computed or found in the cache
    generated_tokens: int
    op_seconds: OpSeconds

    @property
    def only_decodes(self) -> bool:
        """Whether no prompt was worked on."""
        return self.prompt_tokens == 0 and self.generated_tokens > 0


class StepLog:
    """Takes the records of a run as its `on_step`; `steps` holds what they say."""

    def __init__(self, timer: OpTimer | None) -> None:
        self.steps: list[Step] = []
        self._timer = timer
        self._at = perf_counter()
        self._prompt_tokens = self._generated_tokens = 0
        self._snapshot = timer.snapshot() if timer else {}

    def __call__(self, record: StepRecord) -> None:
        """Note one step."""
        now = perf_counter()
        self.steps.append(
            Step(
                now - self._at,
                record.prompt_tokens - self._prompt_tokens,
                record.generated_tokens - self._generated_tokens,
                self._timer.since(self._snapshot) if self._timer else {},
            )
        )
        self._prompt_tokens, self._generated_tokens = record.prompt_tokens, record.generated_tokens
        self._snapshot = self._timer.snapshot() if self._timer else {}
        self._at = perf_counter()  # what is done here is nobody's time

    @property
    def decode_steps(self) -> list[Step]:
        """Steps that only decode, of the largest batch that did: the steady state."""
        steps = [step for step in self.steps if step.only_decodes]
        most = max((step.generated_tokens for step in steps), default=0)
        return [step for step in steps if step.generated_tokens == most]
