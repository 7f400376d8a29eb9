"""Durations as a line of progress or a report shows them."""


def show_span(low: float, high: float) -> str:
    """Return an interval such as 4 s to 9 s, 3 min to 5 min or 1 h 10 min to 1 h 40 min.

    Rounded to what people plan by, and outwards, so that it still holds what it held.
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
    """Return what a span of so many seconds is rounded to, in seconds."""
    bounds = ((20, 1), (60, 5), (600, 60), (3600, 300), (36_000, 600))
    return next((step for bound, step in bounds if seconds <= bound), 3600)


def _in_words(seconds: int) -> str:
    hours, minutes, rest = seconds // 3600, seconds % 3600 // 60, seconds % 60
    if seconds < 60:
        return f"{seconds} s"
    parts = (f"{hours} h" * (hours > 0), f"{minutes} min" * (minutes > 0), f"{rest} s" * (rest > 0))
    return " ".join(part for part in parts if part)


def show_rate(per_s: float) -> str:
    """Return rows a second with two digits at least, and none behind the point from 100 on."""
    if per_s >= 100:
        return f"{per_s:,.0f}"
    return f"{per_s:.1f}" if per_s >= 10 else f"{per_s:.2g}"


def show_seconds(seconds: float) -> str:
    """Return a duration such as 42s, 3m20s or 2h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"
