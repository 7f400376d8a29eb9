"""The page of `bench memory`: S4's table with its charts, in a real browser."""

from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli.bench.memory import memory_document, memory_tables
from pagedrun.paged.bench.memory import MemoryBench, MemoryBenchFigures, NormalLengths
from tests.cli.page.conftest import OpenPage, Watched, wait_until

CHARTS = ("at_once", "sharing", "over_time", "block_sizes")
HOSTILE = "<img src=x onerror=alert(1)>"


def small_result(num_shared: int = 20) -> MemoryBenchFigures:
    lengths = NormalLengths(40, 20, 8, 128)
    return MemoryBench(lengths=lengths, counts=(4, 20), num_shared=num_shared).run(lambda _: None)


@pytest.fixture(scope="module")
def result() -> MemoryBenchFigures:
    return small_result()


@pytest.fixture(scope="module")
def shared_page(
    watched: Watched, result: MemoryBenchFigures, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    path = tmp_path_factory.mktemp("page") / "memory.html"
    lines = [("command", f"pagedrun bench memory --model {HOSTILE}")]
    memory_document(result, lines).write(path)
    return watched.open(path)


@pytest.fixture
def page(shared_page: Any, open_page: OpenPage) -> Any:
    return shared_page


def test_charts_show_the_figures(page: Any, result: Any) -> None:
    for chart in CHARTS:
        assert page.locator(f"#{chart} .main-svg .trace").count() > 0, chart
    shown = set(page.locator("#at_once .bartext").all_text_contents())
    assert shown == {
        f"{each[way].utilization:.1%}"
        for each in result["at_once"]
        for way in ("contiguous", "paged")
    }
    prompt = result["sharing"]["prompt"]
    bars = page.locator("#sharing .bartext").all_text_contents()
    for figure in ("blocks", "blocks_alone", "blocks_diverged"):
        assert str(prompt[figure]) in bars
    lines = page.evaluate(
        "document.getElementById('over_time').data.map(each => [each.name, each.y])"
    )
    for number, name in enumerate(("running", "tokens")):
        for way_number, way in enumerate(("contiguous", "first_fit", "paged")):
            expected = [each[name] for each in result["over_time"][way].timeline]
            assert lines[3 * number + way_number] == [way.replace("_", " "), expected]


def test_tables_are_those_of_the_terminal(page: Any, result: MemoryBenchFigures) -> None:
    tables = memory_tables(result)
    assert page.locator(".scroll table").count() == len(tables)
    for number, sheet in enumerate(tables.values()):
        rows = page.locator(".scroll table").nth(number).locator("tbody tr")
        shown = [row.locator("th, td").all_text_contents() for row in rows.all()]
        assert shown == [list(row) for row in sheet.rows]


def test_hostile_text_stays_text(page: Any) -> None:
    assert page.locator("img").count() == 0
    assert HOSTILE in page.locator("details td").first.inner_text()


def test_a_chart_is_saved_and_a_phone_has_room(page: Any) -> None:
    with page.expect_download() as waiting:
        page.click('button[data-save="over_time"]')
    assert Path(waiting.value.path()).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    page.set_viewport_size({"width": 390, "height": 844})
    wait_until(page, "document.documentElement.scrollWidth <= 390")


def test_without_a_system_prompt_there_is_no_chart_of_it() -> None:
    html = memory_document(small_result(num_shared=0), []).html()
    assert 'id="block_sizes"' in html
    assert 'id="sharing"' not in html
