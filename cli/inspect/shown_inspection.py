"""ShownInspection: what `inspect-cache` draws, and prints as JSON."""

from collections.abc import Mapping

from pagedrun.paged.report.inspect.inspection_sections import Inspection


class ShownInspection(Inspection):
    """The inspection of a run with the paths of its files, and what cannot be shown of it.

    `replicas` are the report's, of a run with several, None of others.
    """

    files: dict[str, str | None]
    notes: list[str]
    replicas: list[Mapping[str, object]] | None
