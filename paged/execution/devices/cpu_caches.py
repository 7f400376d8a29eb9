"""The caches of a CPU, as the system tells of them."""

from pathlib import Path

CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def largest_cpu_cache(folder: Path = CPU_CACHES) -> int | None:
    """Return the bytes of the largest cache in a CPU's folder, None if it tells of none."""
    sizes = []
    for file in folder.glob("index*/size"):
        text = file.read_text().strip()  # "32768K"
        if text.endswith("K") and text[:-1].isdecimal():
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes, default=None)
