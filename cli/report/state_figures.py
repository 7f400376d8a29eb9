"""What reports say of the states of recurrent layers."""

from pagedrun.cli.report.figure import Figure
from pagedrun.cli.terminal.sizes import show_size
from pagedrun.paged.report.record.state_figures import StateFigures


def state_figures(states: StateFigures) -> list[Figure]:
    """Return the lines about what recurrent layers keep of each sequence."""
    each, peak = show_size(states["bytes_per_slot"]), show_size(states["peak_bytes"])
    return [
        Figure("slots", f"{states['num_slots']:,}", f"of {each}, one for each sequence"),
        Figure("in use at peak", f"{states['peak_slots']:,}", peak),
        Figure("kept", f"{states['kept_states']:,}", "where rows part, for those that come later"),
        Figure("found", f"{states['found_states']:,}", "sequences began with a kept one"),
    ]
