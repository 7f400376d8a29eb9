"""GpuDescription: what a benchmark's result says of a GPU."""

from typing import TypedDict


class GpuDescription(TypedDict, total=False):
    """Its name, memory in bytes, and the runtime of its driver; empty for a processor."""

    name: str
    memory: int
    num_processors: int
    capability: str
    runtime: str | None
