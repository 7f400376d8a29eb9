"""Forms of attention kernels, and caches to run them on."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import PrefixState, Softmax
from pagedrun.kernels.cpu.attention import group_attention
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.paged.execution.prefix_sharing import PrefixSharing
from tests.kernels.cpu.order_sensitive import Cache, Kind, Tokens
from tests.support.attention_cases import Chunk, prefill_inputs

KINDS = [Kind.SCORES, Kind.VALUES]

Way = tuple[KernelSet, torch.dtype]


class Form(NamedTuple):
    """What attention does besides products; sinks differ from head to head."""

    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False

    def softmax(self, tokens: Tokens) -> Softmax:
        sinks = torch.arange(tokens.q.shape[1]).float() / 3 if self.has_sinks else None
        return Softmax(tokens.scale, self.softcap, sinks)


FORMS = [Form(), Form(window=150), Form(has_sinks=True), Form(37, 2.0, has_sinks=True)]


def prefill(
    way: Way,
    tokens: Tokens,
    cache: Cache,
    chunks: list[Chunk],
    form: Form = Form(),  # noqa: B008 - a value
    sequences: list[list[int]] | None = None,
) -> Tensor:
    """Attend from chunks of sequences, which hold tokens 0, 1, 2, … unless they are given."""
    places = [
        torch.tensor(sequences[table][first : first + size])
        if sequences
        else torch.arange(first, first + size)
        for table, first, size in chunks
    ]
    return group_attention.prefill_attention(
        tokens.q[torch.cat(places)],
        cache.layer,
        cache.block_tables,
        prefill_inputs(chunks),
        form.softmax(tokens),
        form.window,
        kernel_set=way[0],
    )


def prefix(
    way: Way,
    tokens: Tokens,
    cache: Cache,
    q: Tensor,
    num_partitions: list[int],
    block_size: int,
    softcap: float | None = None,
    share: bool = True,
) -> PrefixState:
    """Attend from each row of q over the first partitions of the block table of its number."""
    rows = np.arange(len(q), dtype=np.int32)
    partitions = np.array(num_partitions, np.int32)
    groups = PrefixSharing(share=share).groups(
        cache.block_tables.numpy(), rows, partitions, block_size
    )
    assert groups is not None
    state: PrefixState = group_attention.prefix_attention(
        q,
        cache.layer,
        cache.block_tables,
        groups,
        Softmax(tokens.scale, softcap),
        kernel_set=way[0],
    )
    return state


def assert_same_state(state: PrefixState, expected: PrefixState, what: object) -> None:
    for field in ("max_scores", "sum_exps", "accs"):
        assert torch.equal(getattr(state, field), getattr(expected, field)), (field, what)
