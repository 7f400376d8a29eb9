"""The window that a mask leaves open: read off it, or refused."""

import pytest
import torch

from pagedrun.paged.models.transformers_backend.trace import MaskFunction, window_of


def causal(row: torch.Tensor, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return k <= q


def sliding(width: int) -> MaskFunction:
    return lambda row, head, q, k: (k <= q) & (k > q - width)


@pytest.mark.parametrize("num_positions", [64, 1000, 300_000])
def test_full_attention_has_none(num_positions: int) -> None:
    assert window_of(causal, num_positions) is None


@pytest.mark.parametrize("width", [1, 2, 50, 999])
def test_a_sliding_window_is_found(width: int) -> None:
    assert window_of(sliding(width), 1000) == width


def test_a_window_as_long_as_the_context_is_none() -> None:
    assert window_of(sliding(1000), 1000) is None


OTHERS: dict[str, MaskFunction] = {
    "both ways": lambda row, head, q, k: k >= 0,
    "chunks": lambda row, head, q, k: (k <= q) & (k // 100 == q // 100),
    "a first token for all": lambda row, head, q, k: sliding(50)(row, head, q, k) | (k == 0),
    "not itself": lambda row, head, q, k: k < q,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="does not see exactly the keys"):
        window_of(OTHERS[name], 1000)
