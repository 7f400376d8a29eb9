"""LineOrder: the lines of a row's prompt, and the same prompt with one of them at the end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pagedrun.paged.job.inputs.row import Columns
from pagedrun.paged.job.prompts.messages import parse_messages
from pagedrun.paged.text.prompts.continuations import CONTINUATIONS
from pagedrun.paged.text.prompts.prompt_renderer import RAW
from pagedrun.paged.values.errors import RowError

MAX_LINES = 64  # first lines of a prompt that are tried; the rest counts as one
MAX_ROWS = 500  # rows on which all of them are tried
_TEXT_KEYS = {"role", "content", "name"}  # of messages that are text alone


@dataclass(frozen=True, slots=True)
class LineOrder:
    """A prompt as its lines. `roles` has one entry for each message, None for a plain prompt that
    is in the column `field`; `lines` are (message, line without its end). `mode` is the column
    that says whether a plain prompt is raw.
    """

    field: str
    roles: tuple[str | None, ...]
    lines: tuple[tuple[int, str], ...]
    mode: Columns

    @classmethod
    def of(cls, columns: Columns, field: str | None) -> "LineOrder | None":
        """Return the lines of a row's prompt, None if it is not text alone."""
        name = field or ("prompt" if isinstance(columns.get("prompt"), str) else "messages")
        value = columns.get(name)
        if isinstance(value, str):
            plain = tuple((0, line) for line in value.split("\n"))
            return cls(name, (None,), plain, said_of_mode(columns))
        try:
            messages = parse_messages(value) if field is None else []
        except RowError:
            return None
        if not messages or any(message.keys() - _TEXT_KEYS for message in messages):
            return None
        lines = [
            (place, line)
            for place, message in enumerate(messages)
            for line in message["content"].split("\n")
        ]
        return cls(name, tuple(message["role"] for message in messages), tuple(lines), {})

    def columns(self) -> Columns:
        """Return the columns of a row that asks this."""
        texts: list[list[str]] = [[] for _ in self.roles]
        for place, line in self.lines:
            texts[place].append(line)
        contents = ["\n".join(lines) for lines in texts]
        if self.roles == (None,):
            return {**self.mode, self.field: contents[0]}
        pairs = zip(self.roles, contents, strict=True)
        return {self.field: [{"role": role, "content": text} for role, text in pairs]}

    def line(self, number: int) -> str | None:
        """Return a line, counted from 0, None if there are fewer."""
        return self.lines[number][1] if number < len(self.lines) else None

    def moved(self, number: int) -> "LineOrder":
        """Return the prompt with this line behind all others."""
        if number >= len(self.lines):
            return self
        kept = [*self.lines[:number], *self.lines[number + 1 :]]
        last = len(self.roles) - 1
        return replace(self, lines=(*kept, (last, self.lines[number][1])))

    @staticmethod
    def best_to_move(orders: Sequence["LineOrder"]) -> int | None:
        """Return the line, from 0, whose move leaves the fewest distinct characters.

        None if no move leaves fewer than there are. Counted on the tree of whole lines, which is
        quick and near enough to tell which line to try.
        """
        some = [_Prefixes(order) for order in orders[:MAX_ROWS]]
        now = _num_distinct(each.all() for each in some)
        best, best_number = now, None
        for number in range(min(MAX_LINES, max(len(each.lines) for each in some))):
            then = _num_distinct(each.moved(number) for each in some)
            if then < best:
                best, best_number = then, number
        return best_number


def said_of_mode(columns: Columns) -> Columns:
    """Return the column that says whether a row's plain prompt is raw, as one without
    continuations has it; none if it says nothing."""
    if columns.get(CONTINUATIONS) is not None:
        return {RAW: True}
    return {RAW: columns[RAW]} if isinstance(columns.get(RAW), bool) else {}


class _Prefixes:
    """The beginnings of a prompt that end with a line, as (hash, characters of the line)."""

    def __init__(self, order: LineOrder) -> None:
        lines = [line for _, line in order.lines]
        self.lines = lines[:MAX_LINES]
        if len(lines) > MAX_LINES:
            self.lines.append("\n".join(lines[MAX_LINES:]))
        self._hashes = [hash(line) for line in self.lines]
        self._chain = [0]
        for each in self._hashes:
            self._chain.append(hash((self._chain[-1], each)))

    def all(self) -> Iterable[tuple[int, int]]:
        return self.moved(len(self.lines))

    def moved(self, number: int) -> Iterable[tuple[int, int]]:
        lines = self.lines
        for place in range(min(number, len(lines))):
            yield self._chain[place + 1], len(lines[place]) + 1
        if number >= len(lines):
            return
        chain = self._chain[number]
        for place in [*range(number + 1, len(lines)), number]:
            chain = hash((chain, self._hashes[place]))
            yield chain, len(lines[place]) + 1


def _num_distinct(rows: Iterable[Iterable[tuple[int, int]]]) -> int:
    return sum({key: length for row in rows for key, length in row}.values())
