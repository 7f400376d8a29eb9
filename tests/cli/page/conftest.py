"""A real browser, and pages in it that must make no request and no complaint."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LOCAL = ("file:", "blob:", "data:")

OpenPage = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a window; skips where there is none."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("there is no Chromium here; apt-get install chromium brings one")
    with driver.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found)
        yield chromium
        chromium.close()


def wait_until(page: Any, expression: str) -> None:
    """Wait until an expression holds. Playwright's own way needs what the page forbids."""
    deadline = time.monotonic() + 120
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"never came: {expression}"
        page.wait_for_timeout(20)


class Watched:
    """Opens files in the browser and keeps what they complain of, or ask for from elsewhere."""

    def __init__(self, browser: Any, stack: ExitStack) -> None:
        self.complaints: list[str] = []
        self._browser = browser
        self._stack = stack

    def open(self, path: Path, **settings: Any) -> Any:
        """Return the page when all of it is drawn; `settings` are those of a browser context."""
        context = self._browser.new_context(**{"viewport": DESKTOP, **settings})
        self._stack.callback(context.close)
        context.set_default_timeout(0)  # the test has its own; a busy machine may take its time
        page = context.new_page()
        complain = self.complaints.append
        page.on("console", lambda message: complain(f"console: {message.text}"))
        page.on("pageerror", lambda error: complain(f"error: {error}"))
        page.on("dialog", lambda dialog: complain(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self._note(request.url))
        page.goto(path.resolve().as_uri())
        page.evaluate("typeof mapShown === 'undefined' ? null : mapShown")
        return page

    def _note(self, url: str) -> None:
        if not url.startswith(LOCAL):
            self.complaints.append(f"request: {url[:100]}")


@pytest.fixture(scope="session")
def watched(browser: Any) -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(browser, stack)


@pytest.fixture
def open_page(watched: Watched) -> Iterator[OpenPage]:
    """Open a file: `open_page(path, color_scheme=…)`; at the end, nobody has complained."""
    yield watched.open
    assert watched.complaints == []
