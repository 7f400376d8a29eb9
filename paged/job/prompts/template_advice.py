"""Template advice: what comes early in the prompts and breaks sharing, and what moving it saves.

Tried out, not guessed: a sample of the rows is rendered with a column's value (or a line) taken out
of its place and put at the end, encoded, and its tree of prefixes compared with the one there is.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from pagedrun.kernels.token_rows import sort_rows
from pagedrun.paged.job.inputs.row import Columns
from pagedrun.paged.job.interfaces import TokenizerLike
from pagedrun.paged.job.prompts.line_order import LineOrder, said_of_mode
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.job.prompts.prompts import PromptBuilder
from pagedrun.paged.job.prompts.template import PromptTemplate
from pagedrun.paged.job.prompts.template_columns import TemplateColumns
from pagedrun.paged.report.record.report_sections import MovableParts, TemplateAdvice
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.sampling_params import SamplingParams

MIN_SAVED_SHARE = 0.05
MAX_ADVICE = 3
MAX_COLUMNS = 8
MAX_FAILING_SHARE = 0.1  # of the rows of the sample; beyond, a column cannot be moved just so


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to move behind what all rows have in common.

    `columns` are names of columns, or empty if it is a line; `position` is the character at which
    the first of them begins in the prompt, or the number of the line, from 1. `varies` is the
    share of rows that differ from the most common value. Of `num_computed` tokens that the sample
    would compute, `num_saved` fall away.
    """

    columns: tuple[str, ...]
    position: int
    varies: float
    num_saved: int
    num_computed: int
    text: str | None = None

    @property
    def saved_share(self) -> float:
        """What falls away of the tokens to compute."""
        return self.num_saved / max(self.num_computed, 1)

    def sentence(self) -> str:
        """Say it."""
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
        """Return it as data, with the sentence."""
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
    """Tries other orders of the prompt's parts on rows given as their columns."""

    def __init__(
        self, config: PromptConfig, sampling: SamplingParams, tokenizer: TokenizerLike
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._as_asked = PromptBuilder(config, sampling, tokenizer)
        # Takes a text that a template has made already, and what goes around it.
        self._rendered = PromptBuilder(replace(config, template=None), sampling, tokenizer)

    def advise(self, rows: Sequence[Columns], *, show_text: bool = False) -> TemplateAdvice:
        """Return what is worth moving, best first: nothing if nothing is to be gained."""
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
        places: dict[str, int] = {}
        for name in _columns_used(template.source, rows):
            moved = _move(template, rows, shown, (name,))
            if moved is not None:
                places[name] = int(
                    np.median([_place(a, b) for a, b in zip(shown, moved, strict=True)])
                )
        early = sorted(places, key=lambda name: places[name])[:MAX_COLUMNS]
        found: list[Advice] = []
        # Each alone, and those that come first together: one of two may be of no use.
        for names in [
            *((name,) for name in early),
            *(tuple(early[:n]) for n in range(2, len(early))),
        ]:
            moved = _move(template, rows, shown, names)
            then = self._num_distinct(_plain(moved, rows)) if moved else None
            if then is not None:
                varies = _variation([tuple(str(row.get(n)) for n in names) for row in rows])
                found.append(Advice(names, places[names[0]], varies, now - then, now))
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
        """Return the tokens of the rows' tree; None if they cannot be asked."""
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
    """Return what saves enough, best first; of two that save the same, the one that moves less."""
    best: list[Advice] = []
    for each in sorted(found, key=lambda each: (len(each.columns), -each.saved_share)):
        parts = [b.saved_share for b in best if set(b.columns) <= set(each.columns)]
        if each.saved_share >= max(parts, default=0.0) + MIN_SAVED_SHARE:
            best.append(each)
    return sorted(best, key=lambda each: -each.saved_share)[:MAX_ADVICE]


def _columns_used(source: str, rows: Sequence[Columns]) -> list[str]:
    """Return the columns that a template names, as variables or through `row`."""
    columns = {name for row in rows for name in row}
    return sorted(TemplateColumns.of(source).names & columns)


def _plain(texts: Sequence[str], rows: Sequence[Columns]) -> list[Columns]:
    """Return rows that ask these texts, raw where the rows are that they were made of."""
    return [{**said_of_mode(row), "prompt": text} for text, row in zip(texts, rows, strict=True)]


def _rendered(template: PromptTemplate, row: Columns) -> str | None:
    try:
        return template.render(row)
    except RowError:
        return None


def _move(
    template: PromptTemplate, rows: Sequence[Columns], texts: Sequence[str], names: Sequence[str]
) -> list[str] | None:
    """Return the prompts with the columns' values at the end, in the order they are named.

    None if more than a few rows do not show the value as it is: a condition or a loop over it
    would make another prompt, and not the same one in another order.
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


def _place(text: str, moved: str) -> int:
    """Return the character at which the part that was moved began."""
    pairs = enumerate(zip(text, moved, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(text), len(moved)))


def _variation(values: Sequence[object]) -> float:
    """Return the share of values that are not the most common one."""
    return 1.0 - Counter(values).most_common(1)[0][1] / len(values)
