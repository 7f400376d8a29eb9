"""LogitsProcessor: changes logits before tokens are chosen from them."""

from typing import Protocol

from torch import Tensor

from pagedrun.paged.execution.logits.sampling_batch import SamplingBatch
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_input import Draws
from pagedrun.paged.values.request import Request


class LogitsProcessor(Protocol):
    """One rule of how tokens are chosen. What it does to a row must not depend on other rows."""

    @property
    def needs_newest_token(self) -> bool:
        """Whether the host has to see a row's last token before this can work on the next one.

        A step that it applies to is looked at before the next one is scheduled.
        """
        ...

    @property
    def can_be_captured(self) -> bool:
        """Whether it works on tensors of the `SamplingBatch` alone, so that it can be replayed."""
        ...

    def begin(self, request: Request) -> None:
        """Take note of a request whose tokens will be drawn, before the first of them is."""
        ...

    def end(self, row: int) -> None:
        """Forget a request, by its index: no token of it will be drawn any more."""
        ...

    def applies(self, draws: Draws) -> bool:
        """Return whether it changes anything for these draws."""
        ...

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Take note of tokens that the host has seen, in the order of their answers.

        [num_tokens] int64 each: whose answer, which of its samples, the token.
        """
        ...

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Return the logits [num_rows, vocab_size] to go on with.

        One that cannot be captured may write into those given, which are the stage's own. To one
        that can be captured they have to stay as they are. One that computes with logits, rather
        than forbid tokens, makes them float32: `logits.float()` copies them only if they are not.
        """
        ...
