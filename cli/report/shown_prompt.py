"""Screen of `show`: text of a prompt on stdout, and its figures on stderr."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from pagedrun.cli.report.report import draw_section
from pagedrun.cli.report.report_figures import Figure
from pagedrun.cli.terminal.console import safe_lines
from pagedrun.paged.text.prompt_reader import PromptMode
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pagedrun.paged.job.shown_row import ShownRow  # which imports much

MAX_WIDTH = 110
MAX_NAMED = 3  # prefixes, kinds of special tokens
VALUE_CHARS = 400  # of a parameter, a grammar for example
ALWAYS = ("max_tokens", "temperature", "seed")  # other parameters only if not default


def draw_prompt(row: "ShownRow", console: Console, *, ids: bool) -> None:
    """Print the text of a prompt, with `ids` also its token ids.

    On a terminal special and shared parts are styled; elsewhere the text is written unchanged.
    """
    if console.is_terminal:
        text = Text()
        for part in row.parts:
            style = "bold cyan" if part.special else "dim" if part.shared else ""
            text.append(safe_lines(part.text), style)
        console.print(text, soft_wrap=True)
    else:
        console.file.write(f"{row.text}\n")
    if ids:
        console.file.write(" ".join(map(str, row.token_ids)) + "\n")


def draw_figures(row: "ShownRow", console: Console) -> None:
    """Print the figures and sampling parameters of a prompt."""
    sections = {
        f"Prompt of row {row.index}, id {row.id}, {row.unit} {row.line}": _tokens(row),
        "Scored after it": (
            Figure(f"continuation {n}", "", text) for n, text in enumerate(row.continuations)
        ),
        "Sampling": _sampling(row),
    }
    for title, figures in sections.items():
        draw_section(console, title, figures, MAX_WIDTH)


def _tokens(row: "ShownRow") -> Iterator[Figure]:
    mode = "made by the chat template" if row.prompt_mode is PromptMode.CHAT else "raw"
    yield Figure("prompt tokens", f"{row.prompt_tokens:,}", mode)
    special = Counter(part.text for part in row.parts if part.special)
    if special:
        named = [f"{text} × {count}" for text, count in special.most_common(MAX_NAMED)]
        more = [f"{len(special) - MAX_NAMED} other kinds"] if len(special) > MAX_NAMED else []
        yield Figure("special tokens", f"{special.total():,}", ", ".join([*named, *more]))
    yield Figure("shared with other rows", *_shared(row))
    if row.truncated_tokens:
        where = "beginning" if row.truncated_from == "left" else "end"
        note = f"tokens, from the prompt's {where}, to fit --max-model-len {row.max_model_len}"
        yield Figure("cut", f"{row.truncated_tokens:,}", note, "bold yellow")


def _shared(row: "ShownRow") -> tuple[str, str]:
    """Return the length of the longest shared prefix, and the counts of rows that share it."""
    if not row.shared:
        return "0", f"tokens; of {row.rows:,} rows" if row.rows > 1 else "no other rows"
    *shorter, longest = row.shared[::-1][:MAX_NAMED][::-1]
    told = [f"tokens, by {longest.rows - 1:,} of {row.rows - 1:,} other rows"]
    told += [f"{each.tokens:,} by {each.rows - 1:,}" for each in reversed(shorter)]
    return f"{longest.tokens:,}", "; ".join(told)


def _sampling(row: "ShownRow") -> Iterator[Figure]:
    from pagedrun.paged.job.output.manifest import DEFAULT_ORIGIN, sampling_values

    defaults = sampling_values(SamplingParams())
    for name, setting in row.sampling.items():
        if name in ALWAYS or setting.origin != DEFAULT_ORIGIN or setting.value != defaults[name]:
            origin = "default" if setting.origin == DEFAULT_ORIGIN else f"from the {setting.origin}"
            if setting.origin == "room":
                origin = "the room left by the prompt"
            value = _brief(setting.value)
            short = len(value) <= 12
            yield Figure(name, value if short else "", origin if short else f"{value} ({origin})")


def _brief(value: JSONValue) -> str:
    import json

    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 1] + "…"
