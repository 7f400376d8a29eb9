"""MaskFiller: the next tokens that many answers may have, computed beside the caller's work."""

from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.text.grammar.matcher import GrammarMatcher

if TYPE_CHECKING:
    from llguidance import LLExecutor


class MaskFiller:
    """Computes the masks of many answers at once, in a thread beside the caller's."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "masks")
        self._executor: LLExecutor | None = None
        self._filling: list[Future[None]] = []

    def begin(self, matchers: Seq[GrammarMatcher]) -> None:
        """Begin to fill the masks of matchers, which nobody may use until `wait` returns."""
        if matchers:
            self._filling.append(self._thread.submit(self._fill, matchers))

    def wait(self) -> None:
        """Wait until all masks are filled."""
        for each in self._filling:
            each.result()
        self._filling.clear()

    def _fill(self, matchers: Seq[GrammarMatcher]) -> None:
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(cpu_quota())
        masks = np.empty((len(matchers), len(matchers[0].mask)), dtype=np.int32)
        states = [(each.state, place) for place, each in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(
            states, masks.ctypes.data, masks.strides[0], len(masks)
        )
        for each, mask in zip(matchers, masks, strict=True):
            each.fill(mask)
