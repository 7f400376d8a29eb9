"""StepLog: how long each step of a run took, and what it did.

What a step did is seen from the ops that it called: the records count a prompt's tokens when its
row begins, though it may take several steps to compute them.
"""

from collections import deque
from dataclasses import dataclass
from time import perf_counter

from pagedrun.paged.bench.runs.op_timer import OpSeconds, OpTimer
from pagedrun.paged.metrics.timeline import StepRecord

PREFILL = "prefill_attention"


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `seconds` reaches from the end of the step before, so that steps add up."""

    seconds: float
    generated_tokens: int
    op_seconds: OpSeconds

    @property
    def only_decodes(self) -> bool:
        """Whether no prompt was worked on, not even the rest of one."""
        return PREFILL not in self.op_seconds


class StepLog:
    """Takes the records of a run as its `on_step`; `steps` holds what they say.

    With `async_scheduling` a step's tokens count one step later than it is launched, and its ops
    called.
    """

    def __init__(self, timer: OpTimer, *, async_scheduling: bool = False) -> None:
        self.steps: list[Step] = []
        self._timer = timer
        self._launched: deque[OpSeconds] = deque([{}] if async_scheduling else [])
        self._at = perf_counter()
        self._generated_tokens = 0
        self._snapshot = timer.snapshot()

    def __call__(self, record: StepRecord) -> None:
        """Note one step."""
        now = perf_counter()
        self._launched.append(self._timer.since(self._snapshot))
        self.steps.append(
            Step(
                now - self._at,
                record.generated_tokens - self._generated_tokens,
                self._launched.popleft(),
            )
        )
        self._generated_tokens = record.generated_tokens
        self._snapshot = self._timer.snapshot()
        self._at = perf_counter()  # what is done here is part of no step

    @property
    def decode_steps(self) -> list[Step]:
        """Steps that only decode, of the largest batch that did: the steady state."""
        steps = [step for step in self.steps if step.only_decodes]
        most = max((step.generated_tokens for step in steps), default=0)
        return [step for step in steps if step.generated_tokens == most]
