"""Progress on stderr: a live display on a terminal, otherwise periodic lines."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from rich.console import Console

from pagedrun.cli.options.generate_flags import ProgressMode
from pagedrun.cli.progress.run_figures import ProgressFigures, ProgressFiguresListener
from pagedrun.cli.terminal.console import note, tell
from pagedrun.cli.terminal.json_lines import json_line
from pagedrun.cli.terminal.units import show_guess, show_rate, show_seconds, show_span
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.text.prompt_reader import PromptModes


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds to the first line of text, between lines, and between JSON objects."""

    first_line_s: float = 5.0
    line_s: float = 30.0
    json_s: float = 5.0


USUAL_PACE = Pace()


@contextmanager
def show_progress(
    mode: str, console: Console, *, quiet: bool = False, pace: Pace = USUAL_PACE
) -> Iterator[JobListener]:
    """Yield a job listener whose progress is shown on `console`."""
    if quiet:
        yield JobListener()
        return
    chosen = _resolve(ProgressMode(mode), console)
    if chosen is ProgressMode.RICH:
        from pagedrun.cli.progress.live import show_live

        with show_live(console, partial(note_prompts, console)) as listener:
            yield listener
    elif chosen is ProgressMode.JSON:
        with _json_lines(console, pace.json_s) as listener:
            yield listener
    elif chosen is ProgressMode.PLAIN:
        watch = _watch_in_lines(console)

        def show() -> None:
            note(console, line(watch.figures()))

        with every(pace.first_line_s, pace.line_s, show):
            yield watch
    else:
        yield _watch_in_lines(console)


def note_prompts(console: Console, modes: PromptModes) -> None:
    """Print the counts of prompt modes."""
    note(console, f"Prompts: {modes}")


def line(figures: ProgressFigures) -> str:
    """Return the progress as one line, with the terms of vLLM's log."""
    now = f"[{show_seconds(figures.elapsed_s)}] {figures.phase.value}"
    if figures.phase is not Phase.RUN:
        return now
    left = figures.time_left
    eta = "unknown"
    if left is not None:
        least = "at least " if figures.has_more_rows else ""
        eta = f"{least}{show_guess(left.guess_s)} ({show_span(left.low_s, left.high_s)})"
    of_these = [
        f"{count} {what}"
        for count, what in ((figures.rows_before, "before"), (figures.rows_failed, "failed"))
        if count
    ]
    told = f" ({', '.join(of_these)})" if of_these else ""
    speed = f"{show_rate(figures.rows_per_s)} rows/s"
    if figures.is_before_first_row:
        speed = f"{figures.prompt_tokens_done}/{figures.prompt_tokens_total} prompt tokens"
    more = "+" if figures.has_more_rows else ""
    parts = [
        f"{now}: {figures.rows_done}/{figures.rows_total}{more} rows{told}",
        speed,
        f"prompt {figures.prompt_tokens_per_s:.1f} tokens/s",
    ]
    if figures.generates:
        parts.append(f"generation {figures.generated_tokens_per_s:.1f} tokens/s")
    if figures.has_pool:
        parts += [
            f"Running: {figures.running} reqs, Waiting: {figures.waiting} reqs",
            f"KV cache usage: {figures.pool_use:.1%}",
            f"Prefix cache hit rate: {figures.hit_rate:.1%}",
            f"preemptions: {figures.preemptions}",
        ]
    if figures.replicas:
        running = sum(each.is_running for each in figures.replicas)
        parts.append(f"Replicas: {running} of {len(figures.replicas)} running")
    return ", ".join([*parts, f"ETA {eta}"])


@contextmanager
def every(first: float, then: float, show: Callable[[], None]) -> Iterator[None]:
    """Call `show` after `first` seconds and every `then` seconds.

    A separate thread reports on a stalled job too.
    """
    ended = threading.Event()

    def tick() -> None:
        wait = first
        while not ended.wait(wait):
            show()
            wait = then

    thread = threading.Thread(target=tick, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch_in_lines(console: Console) -> ProgressFiguresListener:
    return ProgressFiguresListener(
        lambda message: tell(console, f"Warning: {message}"), tell=partial(note_prompts, console)
    )


@contextmanager
def _json_lines(console: Console, seconds: float) -> Iterator[JobListener]:
    def emit(event: str, **values: Any) -> None:
        console.file.write(json_line(event, **values))
        console.file.flush()

    def enter(phase: Phase) -> None:
        emit("phase", phase=phase.name.lower())

    def show() -> None:
        figures = watch.figures()
        values = {**asdict(figures), "phase": figures.phase.name.lower()}
        if not figures.replicas:
            del values["replicas"]
        emit("progress", **values)

    def tell(modes: PromptModes) -> None:
        emit("prompts", mode=modes.mode, chat=modes.num_chat, raw=modes.num_raw)

    watch = ProgressFiguresListener(
        lambda message: emit("warning", message=message), enter, tell=tell
    )
    with every(seconds, seconds, show):
        yield watch
    show()


def _resolve(mode: ProgressMode, console: Console) -> ProgressMode:
    if mode is not ProgressMode.AUTO:
        return mode
    is_screen = console.is_terminal and not console.is_dumb_terminal
    return ProgressMode.RICH if is_screen else ProgressMode.PLAIN
