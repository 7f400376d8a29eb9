"""Steps of benchmarks/gpu.py, as programs."""

from typing import Any

from benchmarks.on_gpu.parts import (
    Step,
)


def python(name: str, code: str, **fields: Any) -> Step:
    """Return a step that runs Python code."""
    assert '"' not in code
    return Step(name, f'-c "{code}"', "script", **fields)


GOOD = python("good", "print('{}')")
