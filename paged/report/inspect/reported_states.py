"""What a report says of the states of recurrent layers."""

from pagedrun.paged.report.inspect.saved_report import SavedReport
from pagedrun.paged.report.record.state_figures import StateFigures


def reported_states(report: SavedReport) -> StateFigures | None:
    """Return the report's figures, zeros for those that it lacks; None for a model without such
    layers."""

    def figure(name: str) -> int:
        return int(report.get(name) or 0)

    if report.get("num_slots") is None:
        return None
    return {
        "num_slots": figure("num_slots"),
        "bytes_per_slot": figure("bytes_per_slot"),
        "pool_bytes": figure("num_slots") * figure("bytes_per_slot"),
        "peak_slots": figure("peak_slots"),
        "peak_bytes": figure("peak_slots") * figure("bytes_per_slot"),
        "kept_states": figure("kept_states"),
        "found_states": figure("found_states"),
    }
