"""What reports and plans say of a model's weights, in words."""

from pagedrun.cli.terminal.sizes import show_size
from pagedrun.paged.report.record.weight_figures import WeightFigures


def describe_weights(weights: WeightFigures) -> str:
    """Return the bits of a weight in memory and in its file, where that is another number."""
    held, stored = weights["held_bits"], weights["stored_bits"]
    told = f"{held:.3g} bits a weight"
    if weights["stored_bytes"] is None or stored is None:
        return told
    return f"{told}; on disk {show_size(weights['stored_bytes'])}, {stored:.3g} bits a weight"
