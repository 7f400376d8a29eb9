"""Sizes, durations, rates and counts: parsing of typed values, and text for screens."""

import re

import typer

from pagedrun.paged.values.engine_config import AUTO

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?B)?", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
MAX_CHARS = 32


def parse_size(text: str) -> int:
    """Return the bytes in `4294967296`, `4GiB`, `4G` (both 1024-based) or `4GB` (1000-based)."""
    match = _SIZE.fullmatch(text.strip()) if len(text) <= MAX_CHARS else None
    if match is None:
        raise typer.BadParameter("expected bytes, such as 4294967296, 512MiB or 4GiB")
    number, prefix, suffix = match[1], match[2].upper(), (match[3] or "").upper()
    unit = 1000 if suffix == "B" and prefix else 1024
    scale = unit ** _POWERS[prefix]
    return int(number) * scale if number.isdigit() else int(float(number) * scale)


def parse_size_or_auto(text: str) -> int | str:
    """Return "auto", or the bytes as `parse_size` does."""
    if text.strip() == AUTO:
        return AUTO
    try:
        return parse_size(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error.message}, or {AUTO}") from error


def show_size(num_bytes: float) -> str:
    """Return a size in the largest unit that leaves at least one digit before the point."""
    value = float(num_bytes)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


_SPAN = re.compile(
    r"(?:(?P<d>\d+(?:\.\d+)?)d)?(?:(?P<h>\d+(?:\.\d+)?)h)?"
    r"(?:(?P<m>\d+(?:\.\d+)?)m(?:in)?)?(?:(?P<s>\d+(?:\.\d+)?)s?)?",
    re.IGNORECASE | re.ASCII,
)
_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


def parse_span(text: str) -> float:
    """Return the seconds in `90s`, `90`, `2h`, `1h30m`, `1.5h` or `2d`."""
    match = _SPAN.fullmatch("".join(text.split())) if len(text) <= MAX_CHARS else None
    parts = {} if match is None else match.groupdict()
    seconds = sum(float(number) * _SECONDS[unit] for unit, number in parts.items() if number)
    if seconds <= 0:
        raise typer.BadParameter("expected a span of time, such as 90s, 45m, 2h or 1h30m")
    return seconds


def show_span(low: float, high: float) -> str:
    """Return an interval such as 4 s to 9 s, 3 min to 5 min or 1 h 10 min to 1 h 40 min.

    The ends are rounded outwards, so that the result contains the interval.
    """
    first = int(low // _rounding(low)) * _rounding(low)
    last = -int(-high // _rounding(high)) * _rounding(high)
    return _in_words(last) if first == last else f"{_in_words(first)} to {_in_words(last)}"


def show_guess(seconds: float) -> str:
    """Return a rounded duration such as 12 s, 1 min 20 s or 1 h 10 min."""
    bounds = ((20, 1), (120, 5), (600, 10), (3600, 60))
    step = next((step for bound, step in bounds if seconds <= bound), 300)
    return _in_words(round(seconds / step) * step)


def _rounding(seconds: float) -> int:
    """Return the unit for rounding a duration, in seconds."""
    bounds = ((20, 1), (60, 5), (600, 60), (3600, 300), (36_000, 600))
    return next((step for bound, step in bounds if seconds <= bound), 3600)


def _in_words(seconds: int) -> str:
    hours, minutes, rest = seconds // 3600, seconds % 3600 // 60, seconds % 60
    if seconds < 60:
        return f"{seconds} s"
    parts = (f"{hours} h" * (hours > 0), f"{minutes} min" * (minutes > 0), f"{rest} s" * (rest > 0))
    return " ".join(part for part in parts if part)


def show_rate(per_s: float) -> str:
    """Return a rate with at least two digits, without decimals from 100 on."""
    if per_s >= 100:
        return f"{per_s:,.0f}"
    return f"{per_s:.1f}" if per_s >= 10 else f"{per_s:.2g}"


def show_seconds(seconds: float, *, precise: bool = False) -> str:
    """Return a duration such as 42s, 3m20s or 2h05m; with `precise` 42.07 s instead of 42s."""
    if precise and seconds < 60:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def commas(number: float) -> str:
    """Return a number with commas between groups of three digits."""
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """Return `noun`, with an s unless `number` is 1."""
    return noun if number == 1 else f"{noun}s"


def counted(number: int, noun: str) -> str:
    """Return number and noun, such as 1 row or 2,048 rows."""
    return f"{number:,} {plural(number, noun)}"
