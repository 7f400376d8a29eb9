"""ShownInspection: what `inspect-cache` draws, and prints as JSON."""

from pagedrun.paged.report.inspect.inspection_sections import Inspection


class ShownInspection(Inspection):
    """The inspection of a run with the paths of its files, and what cannot be shown of it."""

    files: dict[str, str | None]
    notes: list[str]
