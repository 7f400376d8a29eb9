"""Headline: one large figure at the top of a page."""

from typing import NamedTuple


class Headline(NamedTuple):
    """What the figure is (`label`), the figure as text, and what to compare it with."""

    label: str
    value: str
    note: str = ""
