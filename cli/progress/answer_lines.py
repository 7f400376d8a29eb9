"""Answers on a screen: row id and beginning of the answer, escaped and cut to the width."""

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from pagedrun.cli.terminal.console import safe
from pagedrun.paged.job.progress import AnswerPreview

MAX_ID_WIDTH = 20
MAX_LINES = 3
MIN_WIDTH = 16  # of an answer; a narrower screen cuts it


def draw_answers(answers: tuple[AnswerPreview, ...], console: Console, width: int) -> None:
    """Print ids and answers, on at most `MAX_LINES` lines of `width` columns each."""
    widest = min(MAX_ID_WIDTH, width // 4)
    id_width = max((min(cell_len(_id(each)), widest) for each in answers), default=0)
    text_width = max(width - id_width - 4, MIN_WIDTH)
    for each in answers:
        first, *rest = _lines(_text(each), console, text_width)
        name = Text(f"  {_cut(_id(each), id_width)}  ", style="bold")
        console.print(Text.assemble(name, first), soft_wrap=True)
        for line in rest:
            console.print(Text(" " * (id_width + 4)) + line, soft_wrap=True)


def answer_line(answer: AnswerPreview) -> Text:
    """Return the answer as one line, cut when printed."""
    name = _id(answer)
    line = Text.assemble((_cut(name, min(cell_len(name), MAX_ID_WIDTH)), "bold"), "  ")
    line.append_text(_text(answer))
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _id(answer: AnswerPreview) -> str:
    return safe(str(answer.id), MAX_ID_WIDTH + 1)


def _text(answer: AnswerPreview) -> Text:
    """Return an answer or its error as one line, with white space collapsed."""
    if answer.text is None:
        return Text(safe(f"failed: {' '.join((answer.error or '').split())}"), "red")
    text = " ".join(answer.text.split())
    return Text(safe(text)) if text else Text("(empty)", "dim")


def _lines(text: Text, console: Console, width: int) -> list[Text]:
    lines = list(text.wrap(console, width, overflow="fold"))
    for line in lines:
        line.rstrip()
    if len(lines) > MAX_LINES:
        lines = lines[:MAX_LINES]
        lines[-1].truncate(width - 1)
        lines[-1].append("…")
    return lines


def _cut(text: str, width: int) -> str:
    """Return `text` in exactly `width` columns of the screen."""
    return (
        set_cell_size(text, width - 1) + "…"
        if cell_len(text) > width
        else set_cell_size(text, width)
    )
