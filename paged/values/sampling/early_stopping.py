"""EarlyStopping: when a beam search may end before its beams do."""

from enum import StrEnum


class EarlyStopping(StrEnum):
    """In the words of Transformers, where the first two are the booleans.

    With `width` finished beams: `FALSE` ends when the best running beam, scored at its present
    length, is not better than the worst finished one; `TRUE` ends at once; `NEVER` scores that beam
    at the length at which it could be best.
    """

    FALSE = "false"
    TRUE = "true"
    NEVER = "never"
