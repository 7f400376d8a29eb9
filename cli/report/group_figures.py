"""Groups of layers in words: a line for the pool of each."""

from collections.abc import Sequence

from pagedrun.cli.report.figure import Figure
from pagedrun.cli.terminal.sizes import show_size
from pagedrun.paged.report.inspect.inspection_sections import InspectedGroup
from pagedrun.paged.report.record.report_sections import GroupFigures


def group_figures(groups: Sequence[GroupFigures | InspectedGroup]) -> list[Figure]:
    """Return what each pool is, and how much of it was held when most of it was."""
    return [
        Figure(
            group_name(each["num_layers"], each["window"]),
            f"{each['num_blocks']:,}",
            f"blocks, {show_size(each['pool_bytes'])}; at peak {each['peak_blocks']:,} in use, "
            f"{show_size(each['peak_bytes'])}",
        )
        for each in groups
    ]


def group_name(num_layers: int, window: int | None) -> str:
    """Return what a group of layers is called.

    One without layers only names the blocks of a model whose layers all have windows.
    """
    if not num_layers:
        return "no layers, only names"
    seen = "full attention" if window is None else f"window {window:,}"
    return f"{seen}, {num_layers:,} {'layer' if num_layers == 1 else 'layers'}"
