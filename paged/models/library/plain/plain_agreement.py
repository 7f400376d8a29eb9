"""Whether a model gives with its cache, sequence by sequence, what it gives without one."""

from typing import Any

import torch
from torch import Tensor

from pagedrun.paged.models.library.agreement import (
    LENGTHS,
    Differences,
    Disagreement,
    expected_logits,
)
from pagedrun.paged.models.library.plain.cached_forward import CachedForward
from pagedrun.paged.models.library.plain.kept_numbers import num_kept
from pagedrun.paged.models.library.plain.plain_spec import PlainSpec
from pagedrun.paged.models.library.trial import random_row

_NUM_GENERATED = 3


@torch.inference_mode()
def look(causal_lm: Any, forward: CachedForward, network: PlainSpec) -> tuple[float, bool]:
    """Compute two rows beside one another and one of them alone.

    Returns how far logits are from those without a cache, as a share of the largest, and whether
    the row alone had other bits. Raises `Disagreement` if they differ by more than rounding, or if
    a cache holds more than was to be expected.
    """
    vocab_size = network.vocab_size
    expected = expected_logits(causal_lm, vocab_size)
    differences = Differences(expected, "with its cache", causal_lm.dtype)
    ids = [
        random_row(row, length, vocab_size).to(causal_lm.device)
        for row, length in enumerate(LENGTHS)
    ]
    together = _compute(forward, ids, network)
    for row, logits in enumerate(together):
        num_prompt = len(logits) - _NUM_GENERATED
        differences.add(row, 0, logits[:num_prompt], is_prompt=True)
        differences.add(row, num_prompt, logits[num_prompt:], is_prompt=False)
    [alone] = _compute(forward, ids[:1], network)
    return differences.largest(), not torch.equal(alone, together[0])


def _compute(forward: CachedForward, rows: list[Tensor], network: PlainSpec) -> list[Tensor]:
    """Return all logits of rows whose last tokens are computed one by one, in turn."""
    begun = []
    for ids in rows:
        num_prompt = len(ids) - _NUM_GENERATED
        logits, cache = forward(ids[:num_prompt], 0, None, num_prompt)
        begun.append(([logits], cache))
    for behind in range(_NUM_GENERATED, 0, -1):
        for row, (ids, (found, cache)) in enumerate(zip(rows, begun, strict=True)):
            at = len(ids) - behind
            logits, cache = forward(ids[at : at + 1], at, cache, 1)
            begun[row] = ([*found, logits], cache)
    for ids, (_, cache) in zip(rows, begun, strict=True):
        expected = network.num_state_numbers + len(ids) * network.num_token_numbers
        if num_kept(cache) > expected:
            raise Disagreement(
                f"its cache of {len(ids)} tokens holds {num_kept(cache)} numbers instead of "
                f"{expected}"
            )
    return [torch.cat(found)[:, : network.vocab_size].float() for found, _ in begun]
