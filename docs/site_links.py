"""Hooks of MkDocs: README.md and CHANGELOG.md are pages of the site too, and links that lead out
of docs/ lead into the repository.

Links are written for whoever reads the files in a checkout; the site has to find the same things.
"""

import re
from pathlib import Path
from posixpath import normpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# A file at the top of the repository, and the page that it is on the site.
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn the links of one page to where they lead on the site.

    Raises FileNotFoundError for a link to what is not in the repository.
    """
    source = {there: here for here, there in PAGES.items()}.get(page.file.src_uri)
    folder = "" if source else "docs"

    def turned(match: re.Match[str]) -> str:
        path, anchor = normpath(f"{folder}/{match[1]}".lstrip("/")), match[2] or ""
        if path in PAGES:
            return PAGES[path] + anchor
        if path.startswith("docs/"):
            return path.removeprefix("docs/") + anchor
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {path}, which is not there")
        base = (config.repo_url or "").rstrip("/")
        return f"{base}/blob/main/{path}{anchor}" if base else f"#{anchor.lstrip('#')}"

    return LINK.sub(turned, markdown)
