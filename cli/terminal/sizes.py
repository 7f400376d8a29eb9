"""Sizes in bytes, as people write them and as they read them."""

import re

import typer

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


def show_size(num_bytes: float) -> str:
    """Return a size in the largest unit that leaves at least one digit before the point."""
    value = float(num_bytes)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")
