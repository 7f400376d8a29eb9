"""A model to measure in a moment."""

from collections.abc import Mapping
from typing import Any

from pagedrun.paged.bench.workload import BenchModel

TINY = BenchModel.from_shape("tiny")

FLOAT32: Mapping[str, Any] = {"dtype": "float32"}


def silent(message: str) -> None:
    pass
