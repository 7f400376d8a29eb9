"""The pages that users read, and what is in them: blocks, code, commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))
NAMES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", *PAGES)
# These show scripts of their own folders; their links and words are tried.
OF_FOLDERS = ("benchmarks/results/README.md", "recipes/demo/README.md")
DOCS = {name: (ROOT / name).read_text() for name in (*NAMES, *OF_FOLDERS)}


def code_spans(text: str) -> list[str]:
    """Return what is between single backticks, fenced blocks left out."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S))


def fenced(text: str, language: str) -> list[str]:
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, flags=re.M | re.S)
    return [block for tag, block in blocks if tag == language]


def shown_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each line that runs pagedrun, in blocks of shell and between backticks."""
    lines = [line for block in fenced(text, "sh") for line in joined(block).splitlines()]
    for line in (*lines, *code_spans(text)):
        before_pipe = re.split(r" [|<>] |\s#", line)[0]
        if re.match(r"pagedrun\b(?!\.)", before_pipe):
            yield shlex.split(before_pipe)[1:]


def joined(block: str) -> str:
    """Return lines that end in a backslash together with the next one."""
    return re.sub(r"\\\n\s*", "", block)
