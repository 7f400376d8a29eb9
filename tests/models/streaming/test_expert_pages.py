"""Pages of experts: together with the rest they are the entry, and few tokens need few of them."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.kernels.stored_layers import Bytes
from pagedrun.paged.models.streaming.expert_pages import ExpertPages
from pagedrun.paged.models.streaming.residency import PAGE_BYTES
from pagedrun.paged.models.streaming.weight_ring import page_memory


class Layer:
    """Experts in slices of one array, and others in arrays of their own."""

    def __init__(self, memory: Bytes, places: Sequence[Sequence[range]]) -> None:
        self.num_experts = len(places)
        self._arrays = [[memory[each.start : each.stop] for each in own] for own in places]
        for own in self._arrays:
            own.append(np.empty(0, np.uint8))  # of a form without minima, at any address

    def arrays_of(self, expert: int) -> Sequence[Bytes]:
        return self._arrays[expert]


def in_turn(sizes: Sequence[int], gap: int) -> Iterator[range]:
    start = gap
    for size in sizes:
        yield range(start, start + size)
        start += size + gap


@given(st.lists(st.integers(1, 20_000), min_size=2, max_size=8), st.integers(0, 9_000))
def test_they_cover_an_entry(sizes: Sequence[int], gap: int) -> None:
    places = [[each] for each in in_turn(sizes, gap)]
    num_bytes = -(-(places[-1][0].stop + gap) // PAGE_BYTES) * PAGE_BYTES
    memory = page_memory(num_bytes)
    pages = ExpertPages.of(torch.from_numpy(memory), [Layer(memory, places)], 1)
    assert pages is not None
    covered = np.zeros(num_bytes, bool)
    for each in pages.rest:
        covered[each.start : each.stop] = True
    for own, parts in zip(places, pages.experts, strict=True):
        found = np.zeros(num_bytes, bool)
        for each in parts:
            assert each.start % PAGE_BYTES == each.stop % PAGE_BYTES == 0
            found[each.start : each.stop] = True
        assert found[own[0].start : own[0].stop].all()
        assert found.sum() < len(own[0]) + 2 * PAGE_BYTES
        covered |= found
    assert covered.all()


def test_layers_without_experts_have_none() -> None:
    assert ExpertPages.of(torch.from_numpy(page_memory(PAGE_BYTES)), [object()], 1) is None


@pytest.mark.parametrize(("num_tokens", "pays"), [(1, True), (8, True), (9, False)])
def test_few_tokens_read_chosen_experts(num_tokens: int, pays: bool) -> None:
    assert ExpertPages(((),) * 64, (), num_chosen=4).pays(num_tokens) is pays
