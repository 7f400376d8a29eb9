"""Which prompts run before others, as users say it."""

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.rules import integers

PRIORITY = "priority"
_RULE = integers(-(2**31), 2**31 - 1)


def parse_priority(value: object) -> int:
    """Return a prompt's priority, 0 if `value` is None; lower ones run earlier.

    Raises `RowError` for anything but an integer.
    """
    if value is None:
        return 0
    if not _RULE.accepts(value):
        raise RowError("invalid_param", f"{PRIORITY} must be {_RULE.wanted}", param=PRIORITY)
    assert isinstance(value, int)
    return value
