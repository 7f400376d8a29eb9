"""Heading: under which heading of `--help` a benchmark's own flags are shown."""

from enum import StrEnum


class Heading(StrEnum):
    """The headings, apart from `generate`'s."""

    MODEL = "Model"
    ROWS = "Rows"
    LENGTHS = "Requests"
    SIZES = "Sizes"
    COMPARED = "Comparison"
    RESULT = "Result"
