"""Progress on stderr, on a terminal and off it."""

import io
import json
import threading

import pytest
from rich.cells import cell_len
from rich.console import Console

from pagedrun.cli.progress.live import draw_figures
from pagedrun.cli.progress.progress import Pace, every, line, show_progress
from pagedrun.cli.progress.run_figures import ProgressFiguresListener
from pagedrun.cli.terminal.units import show_guess, show_rate, show_seconds, show_span
from pagedrun.paged.job.progress import AnswerPreview, Phase, Tally
from tests.support.recorded_steps import HOSTILE, answering, play, record, watch_at


def drawn(watch: ProgressFiguresListener, width: int = 80) -> str:
    """Return the live block as one line."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(draw_figures(watch.figures()))
    return " ".join(stream.getvalue().split())


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
        assert (figures.prompt_tokens_per_s, figures.generated_tokens_per_s) == (90.0, 50.0)
        assert (figures.prompt_tokens_done, figures.prompt_tokens_total) == (180, 600)
        assert (figures.rows_answered, figures.rows_per_s) == (1, 0.5)
        assert (figures.pool_use, figures.hit_rate, figures.preemptions) == (0.5, 0.25, 2)
        assert figures.elapsed_s == 12.0
        assert figures.eta_s is None  # no answer's length is known

    def test_rows_that_were_there_are_done_from_the_start(self) -> None:
        """The bar of a resumed run began at 0 and never filled."""
        watch = watch_at([0.0])
        watch.on_phase(Phase.RUN)
        tally = Tally(total=100, skipped=90, skipped_failed=2)
        watch.on_tally(tally)
        first = watch.figures()
        assert (first.rows_done, first.rows_total, first.rows_before) == (90, 100, 90)
        assert (first.rows_failed, first.rows_answered) == (2, 0)
        assert "90/100 rows (90 before, 2 failed)" in line(first)
        assert "90/100, 90 before, 2 failed" in drawn(watch)
        tally.ok = 10
        assert watch.figures().rows_done == 100

    def test_prompts_are_counted_in_tokens_until_the_first_row_is_back(self) -> None:
        """A file of long prompts showed 0 rows for minutes."""
        watch = watch_at([0.0])
        watch.on_phase(Phase.RUN)
        tally = answering(total=8)
        watch.on_tally(tally)
        watch.on_step(record(all_prompt_tokens=65_536, prompt_tokens=12_308, generated_tokens=0))
        assert "0/8 rows, 12288/65536 prompt tokens, " in line(watch.figures())
        assert "12,288/65,536 tokens" in drawn(watch)
        counts = {"generated_tokens": 400, "prompt_tokens": 12_400}
        watch.on_step(record(3.0, all_prompt_tokens=65_536, **counts))
        assert "65,536" not in drawn(watch), "the rows under way write, few prompts are computed"
        watch.on_step(record(4.0, all_prompt_tokens=65_536, **counts | {"prompt_tokens": 20_000}))
        assert "65,536" in drawn(watch)
        tally.ok = 1
        assert "prompt tokens, " not in line(watch.figures())
        assert "65,536" not in drawn(watch)

    def test_the_guess_lies_in_its_range_and_the_range_is_dim(self) -> None:
        watch = watch_at([0.0])
        watch.on_phase(Phase.RUN)
        tally = answering(total=8, ok=4)
        for length in (8, 12, 10, 10):
            tally.lengths.note(length)
        watch.on_tally(tally)
        watch.on_step(record(t=8.0, finished=4, running=2, waiting=2))
        figures = watch.figures()
        assert figures.eta_low_s is not None
        assert figures.eta_high_s is not None
        assert figures.eta_s is not None
        assert figures.eta_low_s <= figures.eta_s <= figures.eta_high_s
        guess, span = show_guess(figures.eta_s), show_span(figures.eta_low_s, figures.eta_high_s)
        assert line(figures).endswith(f"ETA {guess} ({span})")
        stream = io.StringIO()
        console = Console(file=stream, width=140, force_terminal=True, color_system="standard")
        console.print(draw_figures(figures))
        assert f", about {guess} left\x1b[2m ({span})\x1b[0m" in stream.getvalue()

    def test_without_answers_and_a_pool_there_are_figures_of_texts(self) -> None:
        watch = watch_at([0.0])
        watch.on_phase(Phase.RUN)
        watch.on_tally(Tally(total=80, ok=20, has_more=True))
        watch.on_step(record(blocks_total=0, blocks_used=0, generated_tokens=0, running=0))
        told = line(watch.figures())
        assert told.startswith("[0s] running: 20/80+ rows, 10.0 rows/s, prompt 90.0 tokens/s, ETA")
        assert drawn(watch).endswith("tokens/s prompt 90 requests 10.0 rows/s · waiting 4")
        assert "20/80+" in drawn(watch)
        assert "at least" in drawn(watch)

    def test_rows_a_second_are_those_of_the_last_seconds_if_there_are_enough(self) -> None:
        now = [0.0]
        watch = watch_at(now)
        watch.on_phase(Phase.RUN)
        watch.on_tally(answering(total=1000, ok=20))
        for second in range(101):
            watch.on_step(record(t=float(second), finished=second // 10))
        now[0] = 100.0
        assert watch.figures().rows_per_s == pytest.approx(0.2)  # 20 in 100 s
        for second in range(101, 121):
            watch.on_step(record(t=float(second), finished=10 + 5 * (second - 100)))
        assert watch.figures().rows_per_s == pytest.approx(5.0)

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


@pytest.mark.parametrize(
    ("per_s", "wanted"),
    [(0.0, "0"), (0.034, "0.034"), (2.14, "2.1"), (12.34, "12.3"), (1234.6, "1,235")],
)
def test_rates(per_s: float, wanted: str) -> None:
    assert show_rate(per_s) == wanted


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [(0.4, "0 s"), (12.3, "12 s"), (77, "1 min 15 s"), (251, "4 min 10 s"), (3900, "1 h 5 min")],
)
def test_guesses(seconds: float, wanted: str) -> None:
    assert show_guess(seconds) == wanted


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
        for answer in (watch.latest, AnswerPreview(1, 5, None, HOSTILE)):
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
