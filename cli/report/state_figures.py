"""What reports say of the states of recurrent layers, or of a library's caches."""

from pagedrun.cli.report.figure import Figure
from pagedrun.cli.terminal.sizes import show_size
from pagedrun.paged.report.record.state_figures import StateFigures
from pagedrun.paged.values.report_parts import LibraryPath


def has_blocks(library: LibraryPath | None) -> bool:
    """Whether blocks hold keys and values; `library`: who computes the model, None for pagedrun
    itself."""
    return library is None or library["path"] == "paged"


def states_title(library: LibraryPath | None) -> str:
    """Return what the states are."""
    return "States of recurrent layers" if has_blocks(library) else "Caches of Transformers"


def states_owner(library: LibraryPath | None) -> str:
    """Return whose they are, for a note."""
    return "of recurrent layers" if has_blocks(library) else "caches of Transformers"


def state_figures(states: StateFigures) -> list[Figure]:
    """Return the lines about what recurrent layers keep of each sequence."""
    each, peak = show_size(states["bytes_per_slot"]), show_size(states["peak_bytes"])
    return [
        Figure("slots", f"{states['num_slots']:,}", f"of {each}, one for each sequence"),
        Figure("in use at peak", f"{states['peak_slots']:,}", peak),
        Figure("kept", f"{states['kept_states']:,}", "where rows diverge, for later rows"),
        Figure("found", f"{states['found_states']:,}", "sequences started from a kept state"),
    ]
