"""The page of a run in a real browser: it draws, moves, and tells what the snapshot holds."""

import socket
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli.page.run_page import run_document, write_run_page
from pagedrun.cli.terminal.console import safe
from pagedrun.paged.metrics.pool_moments import BlockState, block_states, state_counts
from pagedrun.paged.metrics.report_sections import empty_engine_report
from pagedrun.paged.metrics.snapshot import Snapshot
from tests.cli.page.conftest import DESKTOP, OpenPage, Watched, wait_until
from tests.cli.page.small_report import BRANCHINGS, small_report, small_run, with_tables

CHARTS = ("timeline", "prefixes", "prompts", "answers", "ways", "memory")
PNG = b"\x89PNG\r\n\x1a\n"
HOSTILE = "</script><img src=x onerror=alert(1)><b>\u2028\u202e]]>{{7*7}}"
PIXELS = """canvas => {
  const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return [...new Set(new Uint32Array(all.buffer))].length;
}"""
PICTURE = "document.getElementById('map').toDataURL()"


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return with_tables(small_run().snapshot())


@pytest.fixture(scope="module")
def path(snapshot: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "run.html"
    write_run_page(small_report(snapshot), snapshot, path, "answers.jsonl")
    return path


@pytest.fixture(scope="module")
def shared_page(watched: Watched, path: Path) -> Any:
    return watched.open(path, color_scheme="light")


@pytest.fixture
def page(shared_page: Any, open_page: OpenPage) -> Any:
    """The page, opened once, as reading it takes a second; with its controls as they were."""
    shared_page.set_viewport_size(DESKTOP)
    shared_page.evaluate("document.activeElement.blur(); blockMap.cursor = null")
    shared_page.fill("#row", "")
    return shared_page


def legend(page: Any) -> list[int]:
    """The counts beside the block map, in the order of `BlockState`."""
    texts = [
        page.locator(f'#legend [data-state="{each.name.lower()}"]').inner_text()
        for each in BlockState
    ]
    return [int(text.split()[1].replace(",", "")) for text in texts]


def go_to(page: Any, moment: int) -> None:
    page.focus("#moment")
    page.keyboard.press("Home")
    for _ in range(moment):
        page.keyboard.press("ArrowRight")


def test_everything_is_drawn(page: Any) -> None:
    assert page.title() == "answers.jsonl · pagedrun"
    for chart in CHARTS:
        shapes = page.locator(f"#{chart} .main-svg path, #{chart} .main-svg rect.bg").count()
        assert shapes > 2, chart
    assert page.locator("#map").evaluate(PIXELS) >= 4  # a colour for each state, and letters
    assert page.locator("#timeline .scatterlayer .trace").count() == 8
    assert page.locator("#preemptions tbody tr").count() == 2
    assert "swapped out" in page.locator("#preemptions tbody tr").nth(0).inner_text()
    for words in ("75.0%", "3.5 times as many", "about 1.25 s", "finished: length", "torch"):
        assert words in page.content(), words


def test_every_moment_is_that_of_the_snapshot(page: Any, snapshot: Snapshot) -> None:
    states = page.evaluate(
        "[...blockMap.history.steps.keys()].map(m => "
        "Array.from({length: blockMap.history.numBlocks}, (_, b) => blockMap.history.state(m, b)))"
    )
    samples = snapshot.samples
    assert states == [block_states(samples, each).tolist() for each in range(len(samples))]
    counts = state_counts(samples).tolist()
    assert {state for each in counts for state in range(4) if each[state]} == {0, 1, 2, 3}


def test_it_begins_at_the_peak(page: Any, snapshot: Snapshot) -> None:
    counts = state_counts(snapshot.samples).tolist()
    held = [private + shared for _, _, private, shared in counts]
    assert legend(page) == counts[held.index(max(held))]


def test_the_slider_moves_the_map_by_keys(page: Any, snapshot: Snapshot) -> None:
    counts = state_counts(snapshot.samples).tolist()
    pictures = []
    for moment in (0, 5, 11):
        go_to(page, moment)
        assert legend(page) == counts[moment]
        assert page.locator("#told").inner_text().startswith(f"Step {moment}, ")
        pictures.append(page.evaluate(PICTURE))
    assert len(set(pictures)) == 3
    go_to(page, 5)
    assert page.evaluate(PICTURE) == pictures[1]
    page.keyboard.press("End")
    assert legend(page) == counts[-1]


def test_a_click_on_the_timeline_moves_the_map(page: Any) -> None:
    go_to(page, 0)
    place = page.locator("#timeline").bounding_box()
    page.mouse.move(place["x"] + place["width"] * 0.6, place["y"] + 120)
    page.wait_for_selector("#timeline .hoverlayer .legend, #timeline .hoverlayer .hovertext")
    page.mouse.down()
    page.mouse.up()
    wait_until(page, "blockMap.moment > 0")
    wait_until(
        page,
        "document.getElementById('timeline').layout.shapes[0].x0 "
        "=== blockMap.history.times[blockMap.moment]",
    )


def name_of(row: int, sample: int) -> str:
    if row in BRANCHINGS.row:
        return f"{row} (beam {sample})"
    return f"{row} (answer {sample})" if sample else f"{row}"


def test_blocks_tell_who_holds_them(page: Any) -> None:
    run = small_run()
    page.focus("#map")
    for moment in (4, 14):
        go_to(page, moment)
        held = [block for block, holders in enumerate(run.holders[moment]) if holders]
        for block in (0, *held, 47):
            x, y = page.evaluate(f"blockMap.place({block})")
            page.hover("#map", position={"x": x + 3, "y": y + 3})
            told = page.locator("#tip").inner_text().splitlines()
            holders = sorted(run.holders[moment][block])
            fill = run.fills[moment][block]
            assert told[0].startswith(f"Block {block} · ")
            assert told[1] == f"{fill} of 4 tokens"
            if not holders:
                assert told[2:] == ["no holder"]
                continue
            noun = "sequence" if len(holders) == 1 else "sequences"
            assert told[2] == f"held by {len(holders)} {noun}"
            names = {name_of(row, sample) for row, sample in holders}
            rows = told[3].removeprefix("rows ").removeprefix("row ").split(" and ")[0]
            assert set(rows.split(", ")) <= names
            assert len(rows.split(", ")) == min(len(names), 8)


def test_the_map_is_walked_by_arrow_keys(page: Any) -> None:
    page.focus("#map")
    for key, block in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        assert page.locator("#block").inner_text().startswith(f"Block {block} · ")


def test_a_rows_blocks_are_outlined(page: Any) -> None:
    run = small_run()
    moment = 14
    row = next(row for holders in run.holders[moment] for row, _ in sorted(holders))
    blocks = sum(any(each == row for each, _ in holders) for holders in run.holders[moment])
    go_to(page, moment)
    before = page.evaluate(PICTURE)
    page.fill("#row", str(row))
    noun = "block" if blocks == 1 else "blocks"
    assert f"row {row} holds {blocks} {noun}, outlined" in page.locator("#told").inner_text()
    assert page.evaluate(PICTURE) != before
    page.fill("#row", "")
    assert page.evaluate(PICTURE) == before


def test_play_goes_on_and_stops(page: Any) -> None:
    go_to(page, 21)
    # In one go, as it may come to the end before the page is asked again.
    click = "() => { const play = document.getElementById('play'); play.click(); return play; }"
    assert page.evaluate(f"({click})().textContent") == "Pause"
    wait_until(page, "blockMap.moment === 23")
    wait_until(page, "document.getElementById('play').textContent === 'Play'")


def test_the_tree_opens_as_a_list(page: Any) -> None:
    page.evaluate("document.getElementById('prefix-list').open = false")
    page.click("#prefix-list > summary")
    items = page.locator("#prefix-tree li")
    assert items.count() == 5
    assert items.nth(0).locator("summary").first.inner_text() == "21 tokens × 40 rows, saves 640"
    assert "3 tokens × 9 rows, saves 16" in page.locator("#prefix-tree").inner_text()
    boxes = page.locator("#prefixes .slicetext").all_text_contents()
    assert {"60 rows", "706 tokens× 26 rows"} <= {text.replace("\n", "") for text in boxes}


@pytest.mark.parametrize("chart", [*CHARTS, "map"])
def test_charts_are_saved_as_png(page: Any, chart: str) -> None:
    with page.expect_download() as waiting:
        page.click("#save-map" if chart == "map" else f'button[data-save="{chart}"]')
    picture = Path(waiting.value.path()).read_bytes()
    assert waiting.value.suggested_filename.endswith(".png")
    assert picture.startswith(PNG)
    assert int.from_bytes(picture[16:20], "big") >= 500
    assert len(picture) > 1500


def test_charts_follow_the_theme(page: Any) -> None:
    drawn = "document.getElementById('timeline')._fullLayout.paper_bgcolor"
    body = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(f"[{drawn}, {body}, {PICTURE}]")
    page.emulate_media(color_scheme="dark")
    wait_until(page, f"{drawn} !== '{light[0]}'")
    dark = page.evaluate(f"[{drawn}, {body}, {PICTURE}]")
    assert all(one != other for one, other in zip(light, dark, strict=True))
    assert page.evaluate("theme().panel") == dark[0]
    page.emulate_media(color_scheme="light")
    wait_until(page, f"{drawn} === '{light[0]}'")
    assert page.evaluate(f"[{drawn}, {body}, {PICTURE}]") == light


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_is_wider_than_a_phone(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    # The charts follow a moment after the window.
    wait_until(page, f"document.documentElement.scrollWidth <= {width}")
    assert page.locator("#map").bounding_box()["width"] <= width


def test_hostile_text_stays_text_without_a_snapshot(
    open_page: OpenPage, snapshot: Snapshot, tmp_path: Path
) -> None:
    hostile: dict[str, Any] = {
        **small_report(snapshot),
        "finish_reasons": {HOSTILE: 3},
        "errors": {HOSTILE: 1},
        "config": {HOSTILE: HOSTILE, "model": HOSTILE},
        "hardware": {"versions": {HOSTILE: HOSTILE}},
        "preemptions": {HOSTILE: 2},
        "advice": [{"code": "x", "sentence": HOSTILE}, {"code": "y"}, HOSTILE],
        "time": {HOSTILE: HOSTILE},
    }
    path = tmp_path / "hostile.html"
    write_run_page(hostile, None, path, HOSTILE)
    page = open_page(path)
    assert page.locator("h1").inner_text() == safe(HOSTILE)
    assert page.title() == f"{safe(HOSTILE)} · pagedrun"
    assert page.locator("img, main script, b").count() == 0
    texts = page.locator("th, td").all_text_contents()
    assert texts.count(safe(HOSTILE)) >= 2
    assert f"finished: {safe(HOSTILE)}" in texts
    assert page.locator(".advice li").all_text_contents() == [safe(HOSTILE)]
    assert "\u202e" not in page.content()
    assert page.locator("#map").count() == 0
    assert "left no snapshot" in page.locator("main").inner_text()
    assert page.locator("#timeline .scatterlayer .trace").count() == 8


def test_scripts_that_are_not_the_pages_own_do_not_run(page: Any, watched: Watched) -> None:
    """The policy holds even if a tag got in, and nothing can be fetched or sent."""
    assert watched.complaints == []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        page.evaluate(
            """address => {
              const add = (name, fields) =>
                document.body.append(Object.assign(document.createElement(name), fields));
              add("script", {textContent: "window.ran = true"});
              add("script", {src: `${address}/x.js`});
              add("img", {src: `${address}/x.png`});
            }""",
            address,
        )
        fetched = "address => fetch(address).then(() => 'sent', error => error.message)"
        assert page.evaluate(fetched, address) != "sent"
        assert page.evaluate("window.ran") is None
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
    refusals = [each for each in watched.complaints if "Content Security Policy" in each]
    assert len(refusals) >= 4
    watched.complaints.clear()  # that was meant


def test_without_a_report_the_snapshot_is_shown(
    open_page: OpenPage, snapshot: Snapshot, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    write_run_page(None, snapshot, path)
    page = open_page(path)
    assert "left no report" in page.locator("main").inner_text()
    assert page.locator(".cards, #ways, #memory").count() == 0
    assert page.locator("#timeline .scatterlayer .trace").count() == 6
    drawn = page.evaluate("[DATA.timeline.blocks_used, DATA.timeline.tokens]")
    told = small_report(snapshot)["timeline"]
    assert drawn == [[each[name] for each in told] for name in ("blocks_used", "tokens")]
    assert legend(page)


def test_a_run_of_no_rows_has_no_charts(open_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    rows = {"total": 2, "ok": 0, "failed": 2, "skipped": 0}
    report = {"rows": rows, **empty_engine_report(), "errors": {"no_prompt": 2}}
    write_run_page(report, None, path)
    page = open_page(path)
    assert "No row reached the engine" in page.locator("main").inner_text()
    assert page.locator(".chart").count() == 0
    assert page.locator(".cards div").count() == 1
    assert "failed: no_prompt" in page.locator("main").inner_text()


def test_a_report_of_nonsense_makes_a_page() -> None:
    report: dict[str, object] = {
        "kv": None,
        "timeline": [1, {"t": "x"}],
        "rows": [],
        "memory": {"free": 1e400},
    }
    document = run_document(report, None, "")
    timeline = document.data["timeline"]
    assert isinstance(timeline, dict)
    assert timeline["t"] == [0]
    assert '<dd class="value">0</dd>' in document.html()
