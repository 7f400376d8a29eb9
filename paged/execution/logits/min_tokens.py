"""MinTokens: the processor of logits that keeps an answer going until it has its `min_tokens`."""

from torch import Tensor

from pagedrun.paged.execution.logits.sampling_batch import SamplingBatch
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_input import Draws
from pagedrun.paged.values.request import Request


class MinTokens:
    """Forbids what would stop an answer that has not got its `min_tokens`."""

    needs_newest_token = False
    can_be_captured = True

    def begin(self, request: Request) -> None:
        """Do nothing: what stops an answer is in the draws."""

    def end(self, row: int) -> None:
        """Do nothing: nothing is kept."""

    def applies(self, draws: Draws) -> bool:
        """Return whether some answer is too short."""
        return bool(draws.stop_token_ids)

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Do nothing: how many tokens there are is in the draws."""

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Return logits in which no answer can stop too early."""
        return logits if batch.early_stops is None else batch.early_stops.forbidden(logits)
