"""Many names in a message, of which the first few are enough."""

from collections.abc import Iterable

_SHOWN = 4


def listed(names: Iterable[str]) -> str:
    """Return the first few names and how many more there are."""
    found = [ascii(name)[1:-1][:120] for name in names]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
