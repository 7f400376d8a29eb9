"""What `benchmarks/tile_sweep.py` measured, by chip, op and entry; it writes this file.

Empty: no GPU has been at hand.
"""

MEASURED: dict[str, dict[str, dict[str, tuple[tuple[int, ...], ...]]]] = {}
