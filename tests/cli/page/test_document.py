"""What a page is made of: safe to open, complete, and written whole or not at all."""

import base64
import hashlib
import json
import stat
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.cli.page.document import embed
from pagedrun.cli.page.run_data import (
    MAX_BARS,
    CheckedReport,
    histogram,
    kept_moments,
    pack,
    run_data,
)
from pagedrun.cli.page.run_page import run_document, write_run_page
from pagedrun.paged.job.output.output_file import OutputError
from pagedrun.paged.metrics.snapshot import PrefixNodes
from tests.cli.page.small_report import small_report, small_run, with_tables

SNAPSHOT = with_tables(small_run().snapshot())


class Tags(HTMLParser):
    """The tags of a page with their attributes, and what is in its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def html() -> str:
    return run_document(small_report(SNAPSHOT), SNAPSHOT, "out.jsonl").html()


def test_nothing_is_loaded_from_anywhere(html: str) -> None:
    tags = Tags(html).tags
    assert len([tag for tag, _ in tags if tag == "script"]) == 7
    for tag, attributes in tags:
        assert not {"src", "srcset", "action", "onclick", "onload"} & set(attributes), tag
        assert attributes.get("href", "data:,") == "data:,", tag


def test_only_the_pages_own_scripts_may_run(html: str) -> None:
    page = Tags(html)
    policy = next(
        attributes["content"] or ""
        for tag, attributes in page.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    allowed = policy.split("script-src ")[1].split(";")[0].split()
    own = [base64.b64encode(hashlib.sha256(each.encode()).digest()) for each in page.scripts[1:]]
    assert allowed == [f"'sha256-{digest.decode()}'" for digest in own]
    others = [each.strip() for each in policy.split(";") if "script-src" not in each]
    assert others == [
        "default-src 'none'",  # nothing is fetched, by a script or a style either
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_the_licence_of_the_charts_is_kept(html: str) -> None:
    plotly = Tags(html).scripts[1]
    assert "Plotly, Inc." in plotly[:400]
    assert "MIT license" in plotly[:400]


@settings(max_examples=30)
@given(st.recursive(st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)))
def test_data_is_text_in_its_script(value: Any) -> None:
    hostile = {"value": value, "end": "</script><!--<script>\u2028\u2029&"}
    text = embed(hostile)
    assert text.isascii()
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == hostile


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_packed_columns_come_back(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    for column in (
        numbers.integers(0, 2**16, (5, 7)).astype(np.uint16),
        numbers.integers(-(2**31), 2**31, 9).astype(np.int32),
        numbers.integers(0, 2, 9).astype(bool),
        np.zeros((0,), np.int32),
    ):
        packed = pack(column)
        raw = zlib.decompress(base64.b64decode(packed["bytes"]))
        differences = np.frombuffer(raw, packed["type"]).reshape(-1, packed["width"])
        values = np.cumsum(differences, axis=0, dtype=packed["type"])
        assert values.reshape(column.shape).tolist() == column.astype(packed["type"]).tolist()


def test_a_page_is_its_owners_and_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    write_run_page(small_report(SNAPSHOT), SNAPSHOT, path)
    assert path.read_text().startswith("<!doctype html>")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match=r"page\.html cannot be written \(No space left"):
        write_run_page({}, None, path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_large_pool_is_shown_at_fewer_moments() -> None:
    assert kept_moments(5, 100).tolist() == [0, 1, 2, 3, 4]
    kept = kept_moments(1000, 100_000)
    assert len(kept) == 120
    assert (kept[0], kept[-1]) == (0, 999)
    assert kept_moments(3, 10**9).tolist() == [0, 2]
    assert kept_moments(1, 10**9).tolist() == [0]


def test_many_holdings_are_those_of_fewer_rows() -> None:
    holdings = SNAPSHOT.holdings
    reading, most = CheckedReport(small_report(SNAPSHOT)), len(holdings) // 3
    data = run_data(reading, SNAPSHOT, max_holdings=most)["map"]
    assert data is not None
    stride = data["rowStride"]
    assert stride in (4, 8)
    kept = zlib.decompress(base64.b64decode(data["holdings"]["row"]["bytes"]))
    assert len(kept) // 4 == int((holdings.row % stride == 0).sum()) <= len(holdings) // 3


def test_a_large_tree_keeps_parents() -> None:
    nodes = run_data(CheckedReport({}), SNAPSHOT, max_prefixes=3)["prefixes"]
    assert nodes == [[-1, 0, 21, 40, 0, 640], [0, 21, 727, 26, 1, 17_000], [-1, 0, 20, 20, 3, 300]]
    empty = replace(SNAPSHOT, prefixes=PrefixNodes.of())
    assert run_data(CheckedReport({}), empty)["prefixes"] == []


@given(st.dictionaries(st.integers(0, 2_000_000), st.integers(0, 50), max_size=60))
def test_bars_hold_every_sequence(lengths: dict[int, int]) -> None:
    tokens = np.array(sorted(lengths), np.int32)
    counts = np.array([lengths[int(each)] for each in tokens], np.int64)
    bars = histogram(tokens, counts)
    assert len(bars["counts"]) <= MAX_BARS + 1
    assert sum(bars["counts"]) == sum(lengths.values())
    for begin, count in zip(bars["begins"], bars["counts"], strict=True):
        inside = (tokens >= begin) & (tokens < begin + bars["width"])
        assert counts[inside].sum() == count
