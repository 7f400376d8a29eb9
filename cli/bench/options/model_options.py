"""ModelOptions: what a benchmark runs: random weights in a known shape, or a folder's."""

from dataclasses import dataclass
from typing import Annotated

from pagedrun.cli.bench.options.heading import Heading
from pagedrun.paged.bench.model_shapes import SHAPE_NAMES
from pagedrun.paged.values.flags import Flag

DEFAULT_SHAPE = "qwen3-0.6b"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The model of a run: random weights in a known shape, or a folder's."""

    shape: Annotated[
        str | None,
        Flag(
            f"Random weights in the shape of a known model: {', '.join(SHAPE_NAMES)}.",
            Heading.MODEL,
            "NAME",
            default=DEFAULT_SHAPE,
        ),
    ] = None
    layers: Annotated[
        int | None,
        Flag(
            "Cut the shape to N layers, and its vocabulary in proportion.",
            Heading.MODEL,
            "N",
            low=1,
        ),
    ] = None
    model: Annotated[
        str | None,
        Flag("Model folder, or hub id org/name, instead of a shape.", Heading.MODEL, "NAME"),
    ] = None
