"""Softmax: how the scores of the keys that a query sees become their weights."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what describes a shape needs no torch
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Softmax:
    """A score is `q · k * scale`; `softcap` bends it into -softcap .. softcap, None leaves it so.

    `scale` is above 0. The bend is Gemma 2's (arXiv:2408.00118, section 2):
    `softcap * tanh(score / softcap)`.

    `sinks`, [num_heads] float32 on the queries' device, are one more score for each head: of a key
    that all see and that has no value, so weights add up to less than 1. They join where a row
    has read all that it sees, never in what it shares with others.
    """

    scale: float
    softcap: float | None = None
    sinks: "Tensor | None" = None
