"""Logits on every backend: caps, masks and log-probabilities."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.op_values import TokenLogprobs
from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin

VOCAB = 5000  # more than a block of any twin, and no multiple of one


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (3, 2100), (0, 5)])
def test_caps_match_reference(
    num_rows: int,
    size: int,
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(num_rows, size) * 20).to(dtype)
    expected = logits.double()
    Backend.cap_logits(expected, 30.0)
    capped = logits.to(twin.device)
    twin.ops.cap_logits(capped, 30.0)
    if num_rows:
        assert expected.abs().max() < 30
        assert_close(capped, expected)


def test_extremes_tend_to_the_cap_and_nan_stays(twin: Twin) -> None:
    logits = torch.tensor([[-1e30, -torch.inf, torch.inf, 1e30, torch.nan, 0.0]])
    capped = logits.to(twin.device)
    twin.ops.cap_logits(capped, 5.0)
    assert capped[0, :4].tolist() == [-5, -5, 5, 5]
    assert capped[0, 4].isnan()
    assert capped[0, 5] == 0


def test_capped_row_alone_equals_row_in_batch(twin: Twin) -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 1031).to(twin.device) * 9  # more than one thread takes
    together = logits.clone()
    twin.ops.cap_logits(together, 7.0)
    for row, expected in zip(logits, together, strict=True):
        alone = row[None].clone()
        twin.ops.cap_logits(alone, 7.0)
        assert torch.equal(alone[0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 320, 40_001])
def test_a_bitmask_leaves_its_tokens(vocab_size: int, dtype: torch.dtype) -> None:
    random = np.random.default_rng(vocab_size)
    allowed = random.random((3, vocab_size)) < [[0.5], [0.01], [1.0]]
    # Bits past the end say nothing.
    padded = np.ones((3, -(-vocab_size // 32) * 32), dtype=np.uint8)
    padded[:, :vocab_size] = allowed
    bitmask = torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32))
    logits = torch.from_numpy(random.standard_normal((5, vocab_size))).to(dtype)
    logits[4, 0] = torch.nan
    rows = torch.tensor([3, 0, 1])
    expected = logits.clone()
    expected[rows] = logits[rows].masked_fill(torch.from_numpy(~allowed), -torch.inf)
    for backend in (Backend, CpuBackend):
        masked = logits.clone()
        backend.mask_logits(masked, rows, bitmask)
        assert torch.equal(masked.view(torch.uint8), expected.view(torch.uint8))


def test_rows_without_a_bitmask_and_bitmasks_without_a_token() -> None:
    logits = torch.randn(4, 40)
    none = torch.zeros((0, 2), dtype=torch.int32)
    empty = torch.zeros((1, 2), dtype=torch.int32)
    for backend in (Backend, CpuBackend):
        masked = logits.clone()
        backend.mask_logits(masked, torch.zeros(0, dtype=torch.int64), none)
        assert torch.equal(masked, logits)
        backend.mask_logits(masked, torch.tensor([2]), empty)
        assert bool((masked[2] == -torch.inf).all())
        assert torch.equal(masked[[0, 1, 3]], logits[[0, 1, 3]])


def made_logits(dtype: torch.dtype, num_rows: int = 7, scale: float = 4.0) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(num_rows, VOCAB, generator=generator) * scale).to(dtype)


def logprobs(twin: Twin, logits: Tensor, rows: Tensor, ids: Tensor, num_top: int) -> TokenLogprobs:
    logits, rows, ids = (each.to(twin.device) for each in (logits, rows, ids))
    found = twin.ops.token_logprobs(logits, rows, ids, num_top)
    return TokenLogprobs(*(each.cpu() for each in found))


def assert_same(found: TokenLogprobs, expected: TokenLogprobs) -> None:
    assert torch.equal(found.ranks, expected.ranks)
    assert torch.equal(found.top_ids, expected.top_ids)
    assert (found.logprobs - expected.logprobs).abs().max() < 2e-6
    if expected.top_ids.numel():
        assert (found.top_logprobs - expected.top_logprobs).abs().max() < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
def test_logprobs_match_reference(twin: Twin, dtype: torch.dtype, num_top: int) -> None:
    """Ties are many in bfloat16: the lowest id comes first."""
    logits = made_logits(dtype)
    rows = torch.tensor([0, 3, 3, 6])
    ids = torch.tensor([0, VOCAB - 1, 17, int(logits[6].argmax())])
    wanted = Backend.token_logprobs(logits, rows, ids, num_top)
    assert_same(logprobs(twin, logits, rows, ids, num_top), wanted)


def test_reference_is_log_softmax() -> None:
    logits = made_logits(torch.float32)
    ids = torch.arange(len(logits)) * 11
    found = Backend.token_logprobs(logits, torch.arange(len(logits)), ids, 3)
    log_softmax = logits.double().log_softmax(1)
    assert torch.allclose(found.logprobs.double(), log_softmax.gather(1, ids[:, None])[:, 0])
    assert torch.allclose(found.top_logprobs.double(), log_softmax.topk(3).values)
    assert torch.equal(found.top_ids, log_softmax.topk(3).indices)


def test_a_token_does_not_depend_on_the_others(twin: Twin) -> None:
    logits = made_logits(torch.float32, num_rows=40)
    rows, ids = torch.arange(40), torch.arange(40) * 7
    together = logprobs(twin, logits, rows, ids, 4)
    for row in (0, 13, 39):
        alone = logprobs(twin, logits[row : row + 1], torch.tensor([0]), ids[row : row + 1], 4)
        for one, many in zip(alone, together, strict=True):
            assert torch.equal(one[0], many[row])


def test_impossible_tokens_and_long_distances(twin: Twin) -> None:
    logits = made_logits(torch.float32, num_rows=2, scale=300.0)
    logits[0, 1:] = -torch.inf
    rows, ids = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 5])
    found = logprobs(twin, logits, rows, ids, 2)
    assert found.logprobs[:2].tolist() == [0.0, -torch.inf]
    assert found.top_logprobs[0].tolist() == [0.0, -torch.inf]
    assert found.top_ids[0].tolist() == [0, 1]
    assert_same(
        TokenLogprobs(*(each[2:] for each in found)),
        TokenLogprobs(*(each[2:] for each in Backend.token_logprobs(logits, rows, ids, 2))),
    )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_distribution_has_no_logprobs(twin: Twin, bad: float) -> None:
    logits = made_logits(torch.float32, num_rows=1)
    logits[0, 4321] = bad
    found = logprobs(twin, logits, torch.tensor([0]), torch.tensor([3]), 2)
    assert found.logprobs.isnan().all()


def test_no_tokens(twin: Twin) -> None:
    none: Any = torch.empty(0, dtype=torch.int64)
    found = logprobs(twin, made_logits(torch.float32), none, none, 3)
    assert found.top_ids.shape == (0, 3)
