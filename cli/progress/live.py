"""The live display on a terminal: one small block that redraws itself while the job runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pagedrun.cli.progress.answer_lines import answer_line
from pagedrun.cli.progress.durations import show_guess, show_rate, show_seconds, show_span
from pagedrun.cli.progress.replica_rows import MOST_SHOWN, draw_replicas
from pagedrun.cli.progress.run_figures import RunFigures, RunWatch
from pagedrun.cli.terminal.console import tell
from pagedrun.paged.job.progress import JobListener, Phase, ShownAnswer
from pagedrun.paged.text.prompt_renderer import PromptModes

REDRAWS_PER_SECOND = 4
LABEL_WIDTH = 8
OTHER_LINES = 10  # of a screen, beside those of replicas
FIGURES_WIDTH = 24  # wide enough for most, so that the bars keep their length from draw to draw


@contextmanager
def show_live(
    console: Console, on_prompts: Callable[[PromptModes], None] = lambda modes: None
) -> Iterator[JobListener]:
    """Give a listener whose figures are drawn until the block ends, and then cleared away.

    `on_prompts` is called for how prompts are read.
    """
    watch = RunWatch(
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
    """Draws the figures of the moment each time Rich asks."""

    def __init__(self, watch: RunWatch, console: Console) -> None:
        self._watch = watch
        self._console = console
        self._spinner = Spinner("dots", style="cyan")  # shows that a long phase is alive

    def __rich__(self) -> RenderableType:
        most = max(min(self._console.height - OTHER_LINES, MOST_SHOWN), 1)
        figures = self._watch.figures()
        return draw_figures(figures, self._spinner, self._watch.latest, most)


def draw_figures(
    figures: RunFigures,
    spinner: RenderableType = "",
    latest: ShownAnswer | None = None,
    most_replicas: int = MOST_SHOWN,
) -> RenderableType:
    """Return the block: the phase, and once rows are run also rows, pool, speed and batch, the
    answer that came last, and up to so many replicas.
    """
    head = Table.grid(padding=(0, 1))
    left = figures.time_left
    told = Text(f"{figures.phase.value}, {show_seconds(figures.elapsed_s)}")
    if left is not None:
        told.append(f", about {show_guess(left.guess_s)} left")
        told.append(f" ({show_span(left.low_s, left.high_s)})", "dim")
    head.add_row(spinner, told)
    if figures.phase is not Phase.RUN:
        return head
    before = f", {figures.rows_before:,} before" if figures.rows_before else ""
    failed = f", {figures.rows_failed:,} failed" if figures.rows_failed else ""
    bars = Table.grid(padding=(0, 1), expand=True)
    bars.add_column(width=LABEL_WIDTH)
    bars.add_column(ratio=1)
    bars.add_column(justify="left", no_wrap=True, min_width=FIGURES_WIDTH)
    bars.add_row(
        Text("rows"),
        ProgressBar(total=max(figures.rows_total, 1), completed=figures.rows_done),
        Text(f"{figures.rows_done:,}/{figures.rows_total:,}{before}{failed}"),
    )
    if figures.is_before_first_row:
        done, total = figures.prompt_tokens_done, figures.prompt_tokens_total
        bars.add_row(
            Text("prompts"),
            ProgressBar(total=total, completed=done, complete_style="green"),
            Text(f"{done:,}/{total:,} tokens"),
        )
    bars.add_row(
        Text("KV pool"),
        ProgressBar(total=1.0, completed=figures.pool_use, complete_style="cyan"),
        Text(f"{figures.pool_use:.1%} used"),
    )
    rows_per_s = f"{show_rate(figures.rows_per_s)} rows/s · " if figures.rows_answered else ""
    facts = Table.grid(padding=(0, 1))
    facts.add_column(width=LABEL_WIDTH)
    facts.add_column()
    facts.add_row(
        Text("tokens/s"),
        Text(
            f"prompt {figures.prompt_tokens_per_s:,.0f} · "
            f"generated {figures.generated_tokens_per_s:,.0f} · "
            f"prefix hit rate {figures.hit_rate:.1%}"
        ),
    )
    facts.add_row(
        Text("requests"),
        Text(
            f"{rows_per_s}"
            f"running {figures.running:,} · waiting {figures.waiting:,} · "
            f"preemptions {figures.preemptions:,}"
        ),
    )
    if latest is not None:
        facts.add_row(Text("latest"), answer_line(latest))
    replicas = [draw_replicas(figures.replicas, most_replicas)] if figures.replicas else []
    return Group(head, bars, facts, *replicas)
