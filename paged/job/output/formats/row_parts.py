"""RowParts: an output row as the journal has it, taken apart: the row, the input, the answer."""

import re

from pagedrun.paged.job.inputs.json_line import parse_value
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue

ANSWER, FINISH_REASON, ERROR = "answer", "finish_reason", "error"
INPUT, USED = "input", "used"
OutputColumns = dict[str, JSONValue]
MISSING = object()
_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n\s*```\s*", re.DOTALL)  # as chat models quote it


class RowParts:
    """`public` is the row as it is written elsewhere, `given` are all columns of its input."""

    def __init__(self, row: OutputColumns) -> None:
        used, given = row.get(USED), row.get(INPUT)
        self.given: OutputColumns = given if isinstance(given, dict) else {}
        self.public = row
        if isinstance(used, list):
            self.public = {name: value for name, value in row.items() if name != USED}
            if "response" in row:
                del self.public[INPUT]
            else:
                left = {name: each for name, each in self.given.items() if name not in used}
                self.public[INPUT] = left
        self._json: JSONValue | object = None
        self._is_read = False

    @property
    def json_answer(self) -> JSONValue | object:
        """What the answer says in JSON, also where a chat model has fenced it as code."""
        if not self._is_read:
            self._is_read, text = True, self.answer(ANSWER)
            self._json = MISSING if text is None else _json_value(text)
        return self._json

    def answer(self, what: str) -> str | None:
        """Return text, finish reason or error of a row, in whichever format it is answered."""
        if "response" not in self.public:
            value = self.public.get("text" if what == ANSWER else what)
            return _error_text(value) if isinstance(value, dict) else value  # type: ignore[return-value]
        body = follow(self.public, "response.body")
        if what == ERROR:
            error = follow(body, ERROR)  # type: ignore[arg-type]
            return _error_text(error) if isinstance(error, dict) else None
        paths = ("message.content", "text") if what == ANSWER else (what,)
        found = [follow(body, f"choices.0.{path}") for path in paths]  # type: ignore[arg-type]
        return next((each for each in found if isinstance(each, str)), None)


def _json_value(text: str) -> JSONValue | object:
    fenced = _FENCED.fullmatch(text)
    try:
        return parse_value(text if fenced is None else fenced[1])
    except RowError:
        return MISSING


def _error_text(error: OutputColumns) -> str:
    return f"{error.get('code')}: {error.get('message')}"


def follow(value: JSONValue, path: str) -> JSONValue | object:
    """Return what a path leads to. Keys with dots of their own are tried whole first."""
    if isinstance(value, list):
        place, _, rest = path.partition(".")
        if not place.isdecimal() or not place.isascii() or int(place[:9]) >= len(value):
            return MISSING
        found = value[int(place[:9])]
        return follow(found, rest) if rest else found
    if not isinstance(value, dict):
        return MISSING
    if path in value:
        return value[path]
    end = len(path)
    while (end := path.rfind(".", 0, end)) > 0:
        if path[:end] in value:
            return follow(value[path[:end]], path[end + 1 :])
    return MISSING
