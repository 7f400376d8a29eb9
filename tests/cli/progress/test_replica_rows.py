"""The lines of replicas in the live display."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from pagedrun.cli.progress.live import MOST_SHOWN, draw_figures, draw_replicas
from pagedrun.cli.progress.progress import line
from pagedrun.paged.metrics.timeline import ReplicaState, ReplicatedStep
from tests.support.recorded_steps import play, record, watch_at

WELL = ReplicaState(0, "", "running", "32 running, 480 rows left", 12_345, 9_812.4, True, True)
LOADS = ReplicaState(1, "", "loading the model", "loading the model", 0, 0.0, False, False)
DEAD = ReplicaState(2, "", "dead", "died: SIGKILL \x1b[2J" + "x" * 200, 7, 0.0, False, False)


def drawn(replicas: list[ReplicaState], width: int, most: int = MOST_SHOWN) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None)
    console.print(draw_replicas(replicas, most))
    return [each.rstrip() for each in stream.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 140])
def test_each_replica_is_a_line(width: int) -> None:
    lines = drawn([WELL, LOADS, DEAD], width)
    assert lines[0] == "replicas 0 12,345 rows 9,812 tokens/s 32 running, 480 rows left"
    assert lines[1].split() == ["1", "0", "rows", "loading", "the", "model"]
    assert "7 rows" in lines[2]
    assert "died: SIGKILL \\x1b[2Jxx" in lines[2]
    assert lines[2].endswith("…")
    assert len(lines) == 3
    assert max(map(len, lines)) <= width


def test_nodes_are_named_where_there_are_several() -> None:
    lines = drawn([replace(WELL, node="10.0.0.1"), replace(LOADS, node="10.0.0.2")], 80)
    assert lines[0].startswith("replicas 0 10.0.0.1 12,345 rows")


def test_of_many_those_that_are_not_well_are_shown_first_and_the_others_counted() -> None:
    many = [replace(WELL, number=number) for number in range(100)]
    many[60] = replace(DEAD, number=60)
    many[70] = replace(LOADS, number=70)
    lines = drawn(many, 80, 6)
    assert [each.split()[0] for each in lines[1:5]] == ["1", "2", "60", "70"]
    assert lines[5].split() == ["and", "95", "more:", "95", "running"]
    assert len(lines) == 6


def test_they_stand_below_the_bars_and_the_plain_line_counts_them() -> None:
    watch = watch_at([0.0])
    play(watch)
    watch.on_step(ReplicatedStep.with_replicas(record(3.0), (WELL, LOADS)))
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(draw_figures(watch.figures()))
    lines = stream.getvalue().splitlines()
    assert lines[-2].startswith("replicas 0")
    assert lines[-1].split()[0] == "1"
    assert "Replicas: 1 of 2 running, ETA" in line(watch.figures())
