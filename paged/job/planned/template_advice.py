"""Advice on prompt templates: columns and lines early in the prompts that break prefix sharing.

The saving is measured: a sample of the rows is rendered with the value of a column, or a line,
moved to the end, encoded, and its prefix tree compared with the present one.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, islice

import numpy as np

from pagedrun.kernels.token_rows import sort_rows
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.json_line import parse_record
from pagedrun.paged.job.inputs.line_source import LineSource
from pagedrun.paged.job.inputs.reader import is_repeatable, open_inputs
from pagedrun.paged.job.inputs.row import Columns, RowSource
from pagedrun.paged.job.prompts.prompt_builder import PromptBuilder, TemplateColumns
from pagedrun.paged.job.prompts.prompt_config import PromptConfig, PromptTemplate
from pagedrun.paged.metrics.report_sections import EngineReport, MovableParts, TemplateAdvice
from pagedrun.paged.text.chat_messages import parse_messages
from pagedrun.paged.text.prompt import CONTINUATIONS, RAW, TokenizerLike
from pagedrun.paged.values.errors import PagedrunError, RowError
from pagedrun.paged.values.sampling_params import SamplingParams

# A trial takes about half a second: not for runs nearly as short, nor where sharing works.
MIN_RUN_SECONDS = 10.0
ENOUGH_SHARED = 0.5
NUM_ROWS = 100
MAX_CHARS = 500_000  # of all of them


def check_sharing(
    config: JobConfig,
    engine_report: EngineReport,
    tokenizer: TokenizerLike,
    max_chars: int = MAX_CHARS,
) -> TemplateAdvice | None:
    """Return the findings of `TemplateAdvisor` on the first rows; None if a trial is not worth its
    time, and for texts, which are no prompts of a template.

    max_chars: limit of all rows tried.
    """
    if config.pooled is not None or engine_report["prefix"]["possible_hit_rate"] >= ENOUGH_SHARED:
        return None
    if engine_report["time"]["run_s"] < MIN_RUN_SECONDS or not is_repeatable(*config.inputs):
        return None
    limit = min(config.limit or NUM_ROWS, NUM_ROWS)
    try:
        rows = sample_rows(replace(config, limit=limit))
    except (PagedrunError, OSError):  # the input has changed since; every row is answered
        return None
    num_chars = accumulate(len(str(row)) for row in rows)
    rows = [row for row, total in zip(rows, num_chars, strict=True) if total <= max_chars]
    return TemplateAdvisor(config.prompts, config.sampling, tokenizer).advise(rows)


MIN_SAVED_SHARE = 0.05
MAX_ADVICE = 3
MAX_COLUMNS = 8
MAX_FAILING_SHARE = 0.1  # longer prompts cannot have a column moved exactly


@dataclass(frozen=True, slots=True)
class Advice:
    """Column or line to move behind the text that all rows share.

    `columns` are names of columns, empty for a line; `position` is the first character of these in
    the prompt, or the number of the line, from 1. `varies` is the share of rows that differ from
    the most common value. Of `num_computed` tokens computed for the sample, `num_saved` are saved.
    """

    columns: tuple[str, ...]
    position: int
    varies: float
    num_saved: int
    num_computed: int
    text: str | None = None

    @property
    def saved_share(self) -> float:
        """Saved share of the computed tokens."""
        return self.num_saved / max(self.num_computed, 1)

    def sentence(self) -> str:
        """Return the advice as a sentence."""
        share = f"{self.saved_share:.0%} of the prompt tokens that are computed now"
        rows = f"{self.varies:.0%} of rows"
        if len(self.columns) == 1:
            return (
                f"column `{self.columns[0]}` begins at character {self.position} and differs in "
                f"{rows}: after the instructions it would save {share}"
            )
        if self.columns:
            names = " and ".join(f"`{name}`" for name in self.columns)
            return (
                f"columns {names} begin at character {self.position} and differ in {rows}: "
                f"after the instructions they would save {share}"
            )
        shown = f" ({self.text})" if self.text is not None else ""
        return (
            f"line {self.position} of the prompt{shown} differs in {rows} while the text "
            f"after it is common again: at the end it would save {share}"
        )

    def to_dict(self) -> MovableParts:
        """Return the advice as data, with the sentence."""
        parts: MovableParts = {
            "kind": "column" if self.columns else "line",
            "columns": list(self.columns),
            "position": self.position,
            "varies": self.varies,
            "sample_saved_tokens": self.num_saved,
            "sample_computed_tokens": self.num_computed,
            "saved_share": self.saved_share,
            "sentence": self.sentence(),
        }
        if self.text is not None:
            parts["text"] = self.text
        return parts


class TemplateAdvisor:
    """Tries other orders of the prompt's parts on sample rows."""

    def __init__(
        self, config: PromptConfig, sampling: SamplingParams, tokenizer: TokenizerLike
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._as_asked = PromptBuilder(config, sampling, tokenizer)
        # Takes the text rendered by a template, and applies chat template and system prompt.
        self._rendered = PromptBuilder(replace(config, template=None), sampling, tokenizer)

    def advise(self, rows: Sequence[Columns], *, show_text: bool = False) -> TemplateAdvice:
        """Return the moves worth making, best first."""
        template = self._config.template
        if template is not None:
            found, num_rows = self._columns(rows, template)
        else:
            found, num_rows = self._lines(rows, show_text)
        return {"sample_rows": num_rows, "found": [each.to_dict() for each in _worth(found)]}

    # ── Columns of a template ───────────────────────────────────────────────────────────────────

    def _columns(
        self, rows: Sequence[Columns], template: PromptTemplate
    ) -> tuple[list[Advice], int]:
        texts = [_rendered(template, row) for row in rows]
        rows = [row for row, text in zip(rows, texts, strict=True) if text is not None]
        shown = [text for text in texts if text is not None]
        now = self._num_distinct(_plain(shown, rows))
        if now is None or len(rows) < 2:
            return [], len(rows)
        positions: dict[str, int] = {}
        for name in _columns_used(template.source, rows):
            moved = _move(template, rows, shown, (name,))
            if moved is not None:
                positions[name] = int(
                    np.median([_moved_position(a, b) for a, b in zip(shown, moved, strict=True)])
                )
        early = sorted(positions, key=lambda name: positions[name])[:MAX_COLUMNS]
        found: list[Advice] = []
        # Each alone, and the first ones together: one of two may be of no use.
        for names in [
            *((name,) for name in early),
            *(tuple(early[:n]) for n in range(2, len(early))),
        ]:
            moved = _move(template, rows, shown, names)
            then = self._num_distinct(_plain(moved, rows)) if moved else None
            if then is not None:
                varies = _variation([tuple(str(row.get(n)) for n in names) for row in rows])
                found.append(Advice(names, positions[names[0]], varies, now - then, now))
        return found, len(rows)

    # ── Lines of a prompt ───────────────────────────────────────────────────────────────────────

    def _lines(self, rows: Sequence[Columns], show_text: bool) -> tuple[list[Advice], int]:
        orders = [LineOrder.of(row, self._config.field) for row in rows]
        known = [order for order in orders if order is not None]
        if len(known) < 2:
            return [], len(known)
        now = self._num_distinct([order.columns() for order in known])
        number = LineOrder.best_to_move(known)
        if now is None or number is None:
            return [], len(known)
        then = self._num_distinct([order.moved(number).columns() for order in known])
        if then is None:
            return [], len(known)
        lines = [order.line(number) for order in known]
        text = next((line for line in lines if line is not None), None) if show_text else None
        varies = _variation(lines)
        return [Advice((), number + 1, varies, now - then, now, text)], len(known)

    # ── Tokens ──────────────────────────────────────────────────────────────────────────────────

    def _num_distinct(self, rows: Sequence[Columns]) -> int | None:
        """Return the number of tokens in the rows' tree; None if a row is invalid."""
        plain = self._config.template is not None
        builder = self._rendered if plain else self._as_asked
        try:
            prompts = [builder.build(row) for row in rows]
            ids = [
                token_ids
                for is_chat, group in groupby(prompts, lambda prompt: prompt.is_chat)
                for token_ids in self._tokenizer.encode_batch(
                    [prompt.text or "" for prompt in group], add_special_tokens=not is_chat
                )
            ]
        except RowError:
            return None
        offsets = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        tokens = np.fromiter((i for each in ids for i in each), np.int32, count=int(offsets[-1]))
        _, common = sort_rows(tokens, offsets)
        return int(offsets[-1]) - int(common.sum())


def _worth(found: Sequence[Advice]) -> list[Advice]:
    """Return the moves that save enough, best first; of equal ones the smaller first."""
    best: list[Advice] = []
    for each in sorted(found, key=lambda each: (len(each.columns), -each.saved_share)):
        parts = [b.saved_share for b in best if set(b.columns) <= set(each.columns)]
        if each.saved_share >= max(parts, default=0.0) + MIN_SAVED_SHARE:
            best.append(each)
    return sorted(best, key=lambda each: -each.saved_share)[:MAX_ADVICE]


def _columns_used(source: str, rows: Sequence[Columns]) -> list[str]:
    """Return the columns that a template reads, as variables or through `row`."""
    columns = {name for row in rows for name in row}
    return sorted(TemplateColumns.of(source).names & columns)


def _plain(texts: Sequence[str], rows: Sequence[Columns]) -> list[Columns]:
    """Return rows with these texts as prompts, raw where the original rows are."""
    return [{**raw_column(row), "prompt": text} for text, row in zip(texts, rows, strict=True)]


def _rendered(template: PromptTemplate, row: Columns) -> str | None:
    try:
        return template.render(row)
    except RowError:
        return None


def _move(
    template: PromptTemplate, rows: Sequence[Columns], texts: Sequence[str], names: Sequence[str]
) -> list[str] | None:
    """Return the prompts with the columns' values at the end, in the order of their names.

    None if more than a few rows do not contain the value literally: with a condition or a loop over
    it, the result would be another prompt and not a reordered one.
    """
    moved: list[str] = []
    num_failing = 0
    for row, text in zip(rows, texts, strict=True):
        blank = _rendered(template, {**row, **dict.fromkeys(names, "")})
        values = [str(row.get(name, "")) for name in names]
        shown = sum(text.count(value) * len(value) for value in values if value)
        if blank is None or len(text) - len(blank) > shown:
            num_failing += 1
            moved.append(text)
            continue
        moved.append("\n".join([blank, *values]))
    return moved if num_failing <= MAX_FAILING_SHARE * len(rows) else None


def _moved_position(text: str, moved: str) -> int:
    """Return the first character of the part that was moved."""
    pairs = enumerate(zip(text, moved, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(text), len(moved)))


def _variation(values: Sequence[object]) -> float:
    """Return the share of values other than the most common one."""
    return 1.0 - Counter(values).most_common(1)[0][1] / len(values)


MAX_LINES = 64  # first lines of a prompt that are tried; the rest counts as one
MAX_ROWS = 500  # rows in which all of them are tried
_TEXT_KEYS = {"role", "content", "name"}  # of messages with text only


@dataclass(frozen=True, slots=True)
class LineOrder:
    """Prompt as a sequence of lines.

    `roles` has one entry for each message, None for a plain prompt in the column `field`; `lines`
    are (message, line without its end). `mode` is the `raw` column of a plain prompt.
    """

    field: str
    roles: tuple[str | None, ...]
    lines: tuple[tuple[int, str], ...]
    mode: Columns

    @classmethod
    def of(cls, columns: Columns, field: str | None) -> "LineOrder | None":
        """Return the lines of a row's prompt, None if it is not only text."""
        name = field or ("prompt" if isinstance(columns.get("prompt"), str) else "messages")
        value = columns.get(name)
        if isinstance(value, str):
            plain = tuple((0, line) for line in value.split("\n"))
            return cls(name, (None,), plain, raw_column(columns))
        try:
            messages = parse_messages(value) if field is None else []
        except RowError:
            return None
        if not messages or any(message.keys() - _TEXT_KEYS for message in messages):
            return None
        lines = [
            (position, line)
            for position, message in enumerate(messages)
            for line in message["content"].split("\n")
        ]
        return cls(name, tuple(message["role"] for message in messages), tuple(lines), {})

    def columns(self) -> Columns:
        """Return the columns of a row with this prompt."""
        texts: list[list[str]] = [[] for _ in self.roles]
        for position, line in self.lines:
            texts[position].append(line)
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

        None if no move leaves fewer than now. Counted on the tree of whole lines, a fast
        approximation for the choice of a candidate.
        """
        some = [_Prefixes(order) for order in orders[:MAX_ROWS]]
        now = _num_distinct(each.all() for each in some)
        best, best_number = now, None
        for number in range(min(MAX_LINES, max(len(each.lines) for each in some))):
            then = _num_distinct(each.moved(number) for each in some)
            if then < best:
                best, best_number = then, number
        return best_number


def raw_column(columns: Columns) -> Columns:
    """Return the `raw` column of a row's plain prompt, true with continuations; empty without a
    setting.
    """
    if columns.get(CONTINUATIONS) is not None:
        return {RAW: True}
    return {RAW: columns[RAW]} if isinstance(columns.get(RAW), bool) else {}


class _Prefixes:
    """Prefixes of a prompt that end with a line, as (hash, characters of the line)."""

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
        for position in range(min(number, len(lines))):
            yield self._chain[position + 1], len(lines[position]) + 1
        if number >= len(lines):
            return
        chain = self._chain[number]
        for position in [*range(number + 1, len(lines)), number]:
            chain = hash((chain, self._hashes[position]))
            yield chain, len(lines[position]) + 1


def _num_distinct(rows: Iterable[Iterable[tuple[int, int]]]) -> int:
    return sum({key: length for row in rows for key, length in row}.values())


SAMPLE_ROWS = 2000
SAMPLE_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class _Sample:
    """Candidate row: its index, its size in the input, and a function that returns its columns."""

    index: int
    num_bytes: int
    content: bytes | Columns | None  # a line not yet parsed, or None for an invalid row

    def columns(self) -> Columns | None:
        """Return the row's columns, None if it is invalid."""
        if not isinstance(self.content, bytes):
            return self.content
        try:
            return parse_record(self.content.decode("utf-8").strip()).columns
        except (RowError, UnicodeDecodeError):
            return None


def sample_rows(config: JobConfig) -> list[Columns]:
    """Return the columns of up to `SAMPLE_ROWS` rows and `SAMPLE_BYTES`, in file order.

    Every valid row within the job's limit has the same probability (J. Vitter, "Random sampling
    with a reservoir", 1985).
    """
    draw = random.Random(0)
    kept: list[_Sample] = []
    with open_inputs(config.inputs, config.reading) as source:
        for sample in islice(_samples(source), config.limit):
            if len(kept) < SAMPLE_ROWS:
                kept.append(sample)
                continue
            position = draw.randrange(sample.index + 1)
            if position < SAMPLE_ROWS:
                kept[position] = sample
    draw.shuffle(kept)  # so that the limit of bytes is unbiased
    chosen: dict[int, Columns] = {}
    num_bytes = 0
    for sample in kept:
        num_bytes += sample.num_bytes
        if num_bytes > SAMPLE_BYTES and chosen:
            break
        columns = sample.columns()
        if columns is not None:
            chosen[sample.index] = columns
    return [chosen[index] for index in sorted(chosen)]


def _samples(source: RowSource) -> Iterator[_Sample]:
    """Yield the rows; lines of JSON unparsed, since only a few of many are needed."""
    if isinstance(source, LineSource) and source.is_json:
        lines = (line.data or b"" for line in source.lines if not line.is_blank)
        for index, data in enumerate(lines):
            yield _Sample(index, len(data), data)
        return
    begin = 0
    for row in source:
        yield _Sample(row.index, source.num_bytes_read - begin, None if row.error else row.columns)
        begin = source.num_bytes_read
