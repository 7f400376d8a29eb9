"""SavedRow: what a line of an output tells of its row, to those who go on with it or look it up."""

import json
from dataclasses import dataclass

from pagedrun.paged.files.json_object import is_integer
from pagedrun.paged.job.output.batch_row import ANSWERED
from pagedrun.paged.values.json_value import JSONValue

ID_KEYS = ("id", "custom_id")  # the latter in answers to OpenAI batch rows


@dataclass(frozen=True, slots=True)
class SavedRow:
    """A row by its index and the ids that name it, as text."""

    index: int
    ids: tuple[str, ...]
    has_failed: bool

    @classmethod
    def parse(cls, line: bytes) -> "SavedRow | None":
        """Return the row that a line holds, None if it is no output row."""
        try:
            row: JSONValue = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(row, dict) or "error" not in row:
            return None
        index = row.get("index")
        if not is_integer(index) or index < 0:
            return None
        ids = tuple(str(row[key]) for key in ID_KEYS if isinstance(row.get(key), str | int))
        response = row.get("response")
        if isinstance(response, dict):
            has_failed = response.get("status_code") != ANSWERED
        else:
            has_failed = row["error"] is not None
        return cls(index, ids, has_failed)
