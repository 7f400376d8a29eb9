"""The site of docs/: a page that is not in its menu cannot be found there."""

import re

from tests.support.pages import PAGES, ROOT


def test_every_page_is_in_the_menu_once() -> None:
    _, _, menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    made = ["changelog.md", "index.md"]  # of CHANGELOG.md and README.md
    there = [page.removeprefix("docs/") for page in PAGES]
    assert sorted(re.findall(r"[\w-]+\.md", menu)) == sorted(there + made)
