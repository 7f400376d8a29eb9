"""Live display of a job on a terminal."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pagedrun.cli.progress.answer_lines import answer_line
from pagedrun.cli.progress.run_figures import ProgressFigures, ProgressFiguresListener
from pagedrun.cli.terminal.console import safe, tell
from pagedrun.cli.terminal.units import (
    show_guess,
    show_rate,
    show_seconds,
    show_size,
    show_span,
)
from pagedrun.paged.job.progress import AnswerPreview, JobListener, Phase
from pagedrun.paged.metrics.timeline import ReplicaState
from pagedrun.paged.text.prompt_reader import PromptModes

REDRAWS_PER_SECOND = 4
LABEL_WIDTH = 8
OTHER_LINES = 10  # of a screen, without replicas
LEAST_SHOWN = 1.05  # tokens a step
FIGURES_WIDTH = 24  # wide enough for most figures, so that bars keep their length


@contextmanager
def show_live(
    console: Console, on_prompts: Callable[[PromptModes], None] = lambda modes: None
) -> Iterator[JobListener]:
    """Yield a listener with a live display, cleared at the end; `on_prompts` gets the prompt
    modes."""
    watch = ProgressFiguresListener(
        lambda message: tell(console, f"Warning: {message}", "yellow"), tell=on_prompts
    )
    with Live(
        _LiveFigures(watch, console),
        console=console,
        refresh_per_second=REDRAWS_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield watch


class _LiveFigures:
    """Renderable of the current figures."""

    def __init__(self, watch: ProgressFiguresListener, console: Console) -> None:
        self._watch = watch
        self._console = console
        self._spinner = Spinner("dots", style="cyan")  # animated in phases without figures

    def __rich__(self) -> RenderableType:
        most = max(min(self._console.height - OTHER_LINES, MOST_SHOWN), 1)
        figures = self._watch.figures()
        return draw_figures(figures, self._spinner, self._watch.latest, most)


MOST_SHOWN = 12


def draw_figures(
    figures: ProgressFigures,
    spinner: RenderableType = "",
    latest: AnswerPreview | None = None,
    most_replicas: int = MOST_SHOWN,
) -> RenderableType:
    """Return the display: the phase; in the run also rows, pool, speed, batch, latest answer and at
    most `most_replicas` replicas."""
    head = Table.grid(padding=(0, 1))
    left = figures.time_left
    told = Text(f"{figures.phase.value}, {show_seconds(figures.elapsed_s)}")
    if left is not None:
        about = "at least" if figures.has_more_rows else "about"
        told.append(f", {about} {show_guess(left.guess_s)} left")
        told.append(f" ({show_span(left.low_s, left.high_s)})", "dim")
    head.add_row(spinner, told)
    if figures.phase is not Phase.RUN:
        return head
    before = f", {figures.rows_before:,} before" if figures.rows_before else ""
    failed = f", {figures.rows_failed:,} failed" if figures.rows_failed else ""
    more = "+" if figures.has_more_rows else ""
    bars = Table.grid(padding=(0, 1), expand=True)
    bars.add_column(width=LABEL_WIDTH)
    bars.add_column(ratio=1)
    bars.add_column(justify="left", no_wrap=True, min_width=FIGURES_WIDTH)
    bars.add_row(
        Text("rows"),
        ProgressBar(total=max(figures.rows_total, 1), completed=figures.rows_done),
        Text(f"{figures.rows_done:,}/{figures.rows_total:,}{more}{before}{failed}"),
    )
    if figures.is_before_first_row:
        done, total = figures.prompt_tokens_done, figures.prompt_tokens_total
        bars.add_row(
            Text("prompts"),
            ProgressBar(total=total, completed=done, complete_style="green"),
            Text(f"{done:,}/{total:,} tokens"),
        )
    if figures.has_pool:
        bars.add_row(
            Text("KV pool"),
            ProgressBar(total=1.0, completed=figures.pool_use, complete_style="cyan"),
            Text(f"{figures.pool_use:.1%} used"),
        )
    facts = Table.grid(padding=(0, 1))
    facts.add_column(width=LABEL_WIDTH)
    facts.add_column()
    for title, parts in _speeds(figures):
        facts.add_row(Text(title), Text(" · ".join(parts)))
    if reads := figures.reads:
        facts.add_row(
            Text("weights"),
            Text(
                f"pass {reads.passes:,} · {show_size(reads.num_bytes)} read · "
                f"{show_size(reads.bytes_per_s)}/s · waiting for the disk {reads.wait_share:.0%}"
            ),
        )
    if latest is not None:
        facts.add_row(Text("latest"), answer_line(latest))
    replicas = [draw_replicas(figures.replicas, most_replicas)] if figures.replicas else []
    return Group(head, bars, facts, *replicas)


def _speeds(figures: ProgressFigures) -> Iterator[tuple[str, list[str]]]:
    """Yield titles and parts of the lines of tokens and requests."""
    tokens = [f"prompt {figures.prompt_tokens_per_s:,.0f}"]
    if figures.generates:
        tokens.append(f"generated {figures.generated_tokens_per_s:,.0f}")
    rows = [f"{show_rate(figures.rows_per_s)} rows/s"] if figures.rows_answered else []
    if figures.has_pool:
        tokens.append(f"prefix hit rate {figures.hit_rate:.1%}")
        rows.append(f"running {figures.running:,}")
    rows.append(f"waiting {figures.waiting:,}")
    if figures.has_pool:
        rows.append(f"preemptions {figures.preemptions:,}")
    if figures.tokens_per_step >= LEAST_SHOWN:  # drafts save steps
        rows.append(f"{figures.tokens_per_step:.1f} tokens a step")
    yield "tokens/s", tokens
    yield "requests", rows


TITLE = "replicas"


def draw_replicas(replicas: Sequence[ReplicaState], most: int = MOST_SHOWN) -> RenderableType:
    """Return lines for at most `most` replicas, and one with the counts of the others."""
    shown = _chosen(replicas, most)
    has_nodes = len({each.node for each in replicas if each.node}) > 1
    cells = [
        [
            str(each.number),
            safe(each.node) if has_nodes else "",
            f"{each.rows:,} rows",
            f"{each.tokens_per_s:,.0f} tokens/s" if each.is_running else "",
        ]
        for each in shown
    ]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for each, line in zip(shown, cells, strict=True):
        title = TITLE if each is shown[0] else ""
        told = [f"{title:<{len(TITLE)}}"]
        told += [
            " " * (width - cell_len(cell)) + cell for cell, width in zip(line, widths, strict=True)
        ]
        text = Text(" ".join(cell for cell in told if cell), no_wrap=True, overflow="ellipsis")
        lines.append(text.append(f" {safe(each.at)}", "" if each.is_well else "yellow"))
    numbers = {each.number for each in shown}
    others = [each for each in replicas if each.number not in numbers]
    if others:
        stages = Counter(each.stage for each in others).most_common()
        counts = ", ".join(f"{count:,} {stage}" for stage, count in stages)
        told_more = f"{'':<{len(TITLE)}} and {len(others):,} more: {counts}"
        lines.append(Text(told_more, no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _chosen(replicas: Sequence[ReplicaState], most: int) -> list[ReplicaState]:
    """Return at most `most` replicas in order, preferring those with problems."""
    if len(replicas) <= most:
        return list(replicas)
    urgent = sorted(replicas, key=lambda each: (each.is_well, each.number))[: max(most - 1, 1)]
    return sorted(urgent, key=lambda each: each.number)
