"""Penalties and the tables that they are counted in: closed forms, and every backend alike."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend

BACKENDS = [CpuBackend, Backend]
WIDTH = 24


def table(num_lines: int, width: int = WIDTH) -> tuple[Tensor, Tensor, Tensor]:
    """Return an empty table; what is behind a line's ids is nothing that may be looked at."""
    token_ids = torch.full((num_lines, width), -7, dtype=torch.int32)
    counts = torch.full((num_lines, width), 99, dtype=torch.int32)
    return token_ids, counts, torch.zeros(num_lines, dtype=torch.int32)


def as_counts(lines: tuple[Tensor, Tensor, Tensor], place: int) -> dict[int, int]:
    token_ids, counts, num_ids = lines
    num_used = int(num_ids[place])
    ids = token_ids[place, :num_used].tolist()
    assert len(ids) == len(set(ids)) == num_used
    return dict(zip(ids, counts[place, :num_used].tolist(), strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_are_counted_in_their_lines(backend: Any) -> None:
    rng = np.random.default_rng(0)
    lines = table(5)
    expected: list[dict[int, int]] = [{} for _ in range(5)]
    for _ in range(60):
        places = rng.permutation(5)[: rng.integers(1, 5)]
        tokens = rng.integers(0, WIDTH, len(places))
        backend.count_tokens(*lines, torch.from_numpy(places), torch.from_numpy(tokens))
        for place, token in zip(places.tolist(), tokens.tolist(), strict=True):
            expected[place][token] = expected[place].get(token, 0) + 1
    assert [as_counts(lines, place) for place in range(5)] == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_penalties_by_hand(backend: Any) -> None:
    token_ids, counts, num_ids = table(2)
    token_ids[1, :3] = torch.tensor([4, 0, 2])
    counts[1, :3] = torch.tensor([0, 1, 3])  # the first is of the prompt alone
    num_ids[1] = 3
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, -3.0, 7.0, 8.0]])
    factors = [torch.tensor([9.0, each]) for each in (2.0, 0.5, 0.25)]
    backend.penalize(
        logits, torch.tensor([1]), torch.tensor([1]), token_ids, counts, num_ids, *factors
    )
    assert logits[0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert logits[1].tolist() == [
        2.0 / 2 - 0.25 - 0.5,
        1.0,
        -3.0 * 2 - 3 * 0.25 - 0.5,
        7.0,
        8.0 / 2,
    ]


def test_backends_give_the_same_bytes() -> None:
    rng = np.random.default_rng(1)
    num_lines, vocab_size = 40, 500
    lines = table(num_lines, 200)
    for place in range(num_lines):
        num_used = int(rng.integers(0, 200))
        lines[0][place, :num_used] = torch.from_numpy(rng.permutation(vocab_size)[:num_used])
        lines[1][place, :num_used] = torch.from_numpy(rng.integers(0, 9, num_used))
        lines[2][place] = num_used
    factors = [
        torch.from_numpy(rng.uniform(low, high, num_lines).astype(np.float32))
        for low, high in ((0.5, 2), (-2, 2), (-2, 2))
    ]
    places = torch.from_numpy(rng.permutation(num_lines)[:30])
    rows = torch.from_numpy(rng.permutation(35)[:30])
    logits = torch.randn(35, vocab_size, generator=torch.Generator().manual_seed(2)) * 5
    logits[:, 7] = -torch.inf
    ours, theirs = logits.clone(), logits.clone()
    CpuBackend.penalize(ours, rows, places, *lines, *factors)
    Backend.penalize(theirs, rows, places, *lines, *factors)
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, logits)
    untouched = sorted(set(range(35)) - set(rows.tolist()))
    assert torch.equal(ours[untouched], logits[untouched])
