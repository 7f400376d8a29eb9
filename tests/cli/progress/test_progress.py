"""Progress on stderr, on a terminal and off it."""

import io
import json
import threading
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from pagedrun.cli.progress.durations import show_seconds
from pagedrun.cli.progress.live import draw_figures
from pagedrun.cli.progress.progress import Pace, every, line, show_progress
from pagedrun.cli.progress.run_figures import RunWatch
from pagedrun.paged.job.progress.listener import JobListener, Phase
from pagedrun.paged.job.progress.shown_answer import ShownAnswer
from pagedrun.paged.job.progress.tally import Tally
from pagedrun.paged.report.record.timeline import StepRecord

HOSTILE = "id \x1b[2J [/red] \u202e :smile:"


def record(t: float = 2.0, **changes: Any) -> StepRecord:
    values: dict[str, Any] = {
        "t": t,
        "step": 1,
        "running": 3,
        "waiting": 4,
        "blocks_total": 10,
        "blocks_used": 5,
        "blocks_shared": 1,
        "blocks_cached": 0,
        "tokens": 60,
        "finished": 1,
        "total": 8,
        "prompt_tokens": 200,
        "cached_tokens": 50,
        "generated_tokens": 100,
        "preemptions": 2,
    }
    return StepRecord(**{**values, **changes})


def watch_at(times: list[float]) -> RunWatch:
    return RunWatch(warn=lambda message: None, clock=lambda: times[0])


def play(listener: JobListener) -> None:
    listener.on_phase(Phase.RUN)
    listener.on_tally(Tally(total=8, failed=1))
    listener.on_step(record())
    listener.on_answer(ShownAnswer(0, HOSTILE, f"東京{HOSTILE}\n" * 100))
    listener.on_tally(Tally(total=8, ok=1, failed=1))
    listener.on_warning(HOSTILE)


class TestFigures:
    def test_before_anything_happened(self) -> None:
        figures = watch_at([0.0]).figures()
        assert (figures.rows_done, figures.rows_total, figures.eta_s) == (0, 0, None)
        assert line(figures) == "[0s] reading rows"

    def test_of_a_running_job(self) -> None:
        now = [100.0]
        watch = watch_at(now)
        now[0] = 110.0
        play(watch)
        now[0] = 112.0
        figures = watch.figures()
        assert (figures.rows_done, figures.rows_total, figures.rows_failed) == (2, 8, 1)
        assert (figures.prompt_tokens_per_s, figures.generated_tokens_per_s) == (100.0, 50.0)
        assert (figures.pool_use, figures.hit_rate, figures.preemptions) == (0.5, 0.25, 2)
        assert figures.elapsed_s == 12.0
        # One row answered in 2 s; the refused one says nothing about speed; 6 are left.
        assert figures.eta_s == 12.0

    def test_rates_are_those_of_the_last_seconds(self) -> None:
        watch = watch_at([0.0])
        for second in range(101):
            slow = min(second, 50)
            watch.on_step(
                record(t=float(second), prompt_tokens=10 * slow + second, generated_tokens=second)
            )
        figures = watch.figures()
        assert figures.prompt_tokens_per_s == pytest.approx(1.0)
        assert figures.generated_tokens_per_s == pytest.approx(1.0)

    @pytest.mark.parametrize(
        ("seconds", "wanted"),
        [(0.4, "0s"), (59.6, "1m00s"), (200, "3m20s"), (7500, "2h05m"), (360_000, "100h00m")],
    )
    def test_durations(self, seconds: float, wanted: str) -> None:
        assert show_seconds(seconds) == wanted


class TestOffATerminal:
    def shown(self, mode: str) -> list[str]:
        stream, often = _Lines(), Pace(0.02, 0.02, 0.02)
        with show_progress(mode, Console(file=stream, markup=False), pace=often) as listener:
            play(listener)
            assert stream.wait_for(3), "no lines while the job stood still"
        assert "\x1b" not in stream.getvalue()
        assert "\u202e" not in stream.getvalue()
        return stream.getvalue().splitlines()

    @pytest.mark.parametrize("mode", ["auto", "plain"])
    def test_a_line_now_and_then_even_if_nothing_finishes(self, mode: str) -> None:
        shown = self.shown(mode)
        # On a busy machine a line may come before the job has said anything.
        lines = shown[shown.index("Warning: id \\x1b[2J [/red] \\u202e :smile:") + 1 :]
        assert len(lines) >= 3
        for each in lines:
            assert "running: 2/8 rows (1 failed)" in each
            assert "KV cache usage: 50.0%, Prefix cache hit rate: 25.0%" in each
            assert "Running: 3 reqs, Waiting: 4 reqs" in each
            assert "ETA" in each

    def test_json_lines(self) -> None:
        events = [json.loads(each) for each in self.shown("json")]
        # A line of progress may come before the job has said anything.
        phase, warning = (each for each in events if each["event"] != "progress")
        assert (phase["event"], warning["event"]) == ("phase", "warning")
        assert warning["message"] == HOSTILE
        last = events[-1]
        assert (last["phase"], last["rows_done"], last["pool_use"]) == ("run", 2, 0.5)

    def test_none_shows_warnings_alone_and_quiet_not_even_those(self) -> None:
        stream = io.StringIO()
        console = Console(file=stream, markup=False)
        with show_progress("none", console) as listener:
            play(listener)
        assert stream.getvalue().startswith("Warning: id \\x1b")
        before = stream.getvalue()
        with show_progress("plain", console, quiet=True) as listener:
            play(listener)
        assert stream.getvalue() == before


class _Lines(io.StringIO):
    """Waits until more lines have been written."""

    def __init__(self) -> None:
        super().__init__()
        self._written = threading.Condition()

    def wait_for(self, more: int) -> bool:
        with self._written:
            wanted = self.getvalue().count("\n") + more
            return self._written.wait_for(lambda: self.getvalue().count("\n") >= wanted, 200)

    def write(self, text: str) -> int:
        with self._written:
            count = super().write(text)
            self._written.notify_all()
            return count


class TestOnATerminal:
    @pytest.mark.parametrize("width", [40, 80, 140])
    def test_the_live_block_shows_the_figures(self, width: int) -> None:
        watch = watch_at([0.0])
        play(watch)
        stream = io.StringIO()
        Console(file=stream, width=width, color_system=None).print(draw_figures(watch.figures()))
        text = " ".join(stream.getvalue().split())
        assert "2/8, 1 failed" in text
        assert "50.0% used" in text
        assert "prefix hit rate 25.0%" in text
        assert all(len(each) <= width for each in stream.getvalue().splitlines())

    @pytest.mark.parametrize("width", [40, 80, 140])
    def test_the_latest_answer_is_one_safe_line(self, width: int) -> None:
        watch = watch_at([0.0])
        play(watch)
        stream = io.StringIO()
        console = Console(file=stream, width=width, color_system=None)
        for answer in (watch.latest, ShownAnswer(1, 5, None, HOSTILE)):
            before = stream.getvalue()
            console.print(draw_figures(watch.figures(), latest=None))
            without = stream.getvalue().removeprefix(before)
            console.print(draw_figures(watch.figures(), latest=answer))
            shown = stream.getvalue().removeprefix(before + without).splitlines()
            assert len(shown) == len(without.splitlines()) + 1
            assert all(cell_len(each) <= width for each in shown)
            assert "latest" in shown[-1]
        assert "failed: id" in shown[-1]
        assert set(stream.getvalue()) & {"\x1b", "\u202e"} == set()

    def test_before_the_run_the_phase_is_all_there_is_to_show(self) -> None:
        watch = watch_at([0.0])
        watch.on_phase(Phase.COMPILE)
        stream = io.StringIO()
        Console(file=stream, width=80, color_system=None).print(draw_figures(watch.figures()))
        (told,) = [each.strip() for each in stream.getvalue().splitlines()]
        assert told == f"{Phase.COMPILE.value}, 0s"

    def test_live_display_escapes_warnings_and_cleans_up(self) -> None:
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=True, width=80, markup=False, emoji=False)
        with show_progress("rich", console) as listener:
            play(listener)
        assert "id \\x1b[2J [/red] \\u202e :smile:" in stream.getvalue()
        assert "\u202e" not in stream.getvalue()
        assert "\x1b[?25h" in stream.getvalue()  # the cursor is shown again

    def test_auto_is_live_only_on_a_screen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "dumb")
        stream = io.StringIO()
        with show_progress("auto", Console(file=stream, force_terminal=True)) as listener:
            play(listener)
        assert "\x1b" not in stream.getvalue()


def test_the_ticker_ends_with_its_block_also_on_an_error() -> None:
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="1"), every(60, 60, lambda: None):
        raise RuntimeError(threading.active_count() - before)
    assert threading.active_count() == before
