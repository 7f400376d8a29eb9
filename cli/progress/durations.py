"""Durations as a line of progress or a report shows them."""


def show_eta(seconds: float | None) -> str:
    """Return the time left; None, which no row has told yet, is unknown."""
    return "unknown" if seconds is None else show_seconds(seconds)


def show_seconds(seconds: float) -> str:
    """Return a duration such as 42s, 3m20s or 2h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"
