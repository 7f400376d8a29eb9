"""Figure: one line of a report."""

from typing import NamedTuple


class Figure(NamedTuple):
    """A label, a value and what it means. `style` is Rich's, for the value."""

    label: str
    value: str
    note: str = ""
    style: str = "bold"
