"""Spans of time, as people write them."""

import re

import typer

_SPAN = re.compile(
    r"(?:(?P<d>\d+(?:\.\d+)?)d)?(?:(?P<h>\d+(?:\.\d+)?)h)?"
    r"(?:(?P<m>\d+(?:\.\d+)?)m(?:in)?)?(?:(?P<s>\d+(?:\.\d+)?)s?)?",
    re.IGNORECASE | re.ASCII,
)
_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
MAX_CHARS = 32


def parse_span(text: str) -> float:
    """Return the seconds in `90s`, `90`, `2h`, `1h30m`, `1.5h` or `2d`."""
    match = _SPAN.fullmatch("".join(text.split())) if len(text) <= MAX_CHARS else None
    parts = {} if match is None else match.groupdict()
    seconds = sum(float(number) * _SECONDS[unit] for unit, number in parts.items() if number)
    if seconds <= 0:
        raise typer.BadParameter("expected a span of time, such as 90s, 45m, 2h or 1h30m")
    return seconds
