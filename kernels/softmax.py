"""Softmax: how the scores of the keys that a query sees become their weights."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Softmax:
    """A score is `q · k * scale`; `softcap` bends it into -softcap .. softcap, None leaves it so.

    `scale` is above 0. The bend is Gemma 2's (arXiv:2408.00118, section 2):
    `softcap * tanh(score / softcap)`.
    """

    scale: float
    softcap: float | None = None
