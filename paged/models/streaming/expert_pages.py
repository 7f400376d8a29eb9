"""Experts of a streamed entry, of which small steps read only those that tokens have chosen.

A large step uses all experts, which are read ahead like other weights. A step of few tokens uses
few: then the rest of a layer is read ahead, and experts once the router has chosen them, which
reads less but has to wait.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from pagedrun.kernels.stored_layers import OfExperts
from pagedrun.paged.models.streaming.residency import PAGE_BYTES

WORTH_WAITING = 0.5  # share of experts; reading more would take longer than reading all ahead


@dataclass(frozen=True, slots=True)
class ExpertPages:
    """Bytes of an entry as ranges of whole pages: those of each expert, and the rest.

    num_chosen: experts of a token.
    """

    experts: tuple[tuple[range, ...], ...]
    rest: tuple[range, ...]
    num_chosen: int

    @classmethod
    def of(cls, memory: Tensor, layers: Iterable[object], num_chosen: int) -> "ExpertPages | None":
        """Return the pages of an entry in `memory`, [num_bytes] uint8; None if its layers do not
        tell experts apart."""
        found = [each for each in layers if isinstance(each, OfExperts)]
        if not found:
            return None
        base, ranges = memory.data_ptr(), []
        for expert in range(found[0].num_experts):
            arrays = [array for layer in found for array in layer.arrays_of(expert) if array.size]
            starts = [array.ctypes.data - base for array in arrays]
            ranges.append(
                [range(at, at + each.size) for at, each in zip(starts, arrays, strict=True)]
            )
        own = sorted((each for of_expert in ranges for each in of_expert), key=lambda r: r.start)
        return cls(
            tuple(tuple(_pages(each)) for each in ranges),
            tuple(_pages(_between(own, memory.nbytes))),
            num_chosen,
        )

    def pays(self, num_tokens: int) -> bool:
        """Return whether a step of so many tokens reads chosen experts only."""
        return num_tokens * self.num_chosen <= WORTH_WAITING * len(self.experts)


def _between(ranges: Sequence[range], end: int) -> Iterator[range]:
    """Yield what lies between sorted ranges, from 0 to `end`."""
    start = 0
    for each in ranges:
        if each.start > start:
            yield range(start, each.start)
        start = max(start, each.stop)
    if start < end:
        yield range(start, end)


def _pages(ranges: Iterable[range]) -> Iterator[range]:
    """Yield ranges of whole pages that hold these; those that meet become one."""
    last: range | None = None
    for each in sorted(ranges, key=lambda each: each.start):
        start = each.start // PAGE_BYTES * PAGE_BYTES
        stop = -(-each.stop // PAGE_BYTES) * PAGE_BYTES
        if last is not None and start <= last.stop:
            last = range(last.start, max(last.stop, stop))
            continue
        if last is not None:
            yield last
        last = range(start, stop)
    if last is not None:
        yield last
