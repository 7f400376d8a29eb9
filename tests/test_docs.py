"""What README and CONTRIBUTING tell is there: flags, commands, files, links, and the Python."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pagedrun import LLM, SamplingParams

ROOT = Path(__file__).resolve().parent.parent
DOCS = {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md")}
FOLDERS = ("cli/", "paged/", "kernels/", "recipes/", "tests/", "benchmarks/", "src/")
# A run or a command makes these, or they stand for whatever a user has.
NOT_IN_THE_REPOSITORY = {
    "prompts.out.jsonl",
    "OUT.report.json",
    "OUT.run.json",
    "OUT.state.json",
    "config.json",
    "generation_config.json",
    "path/to/model",
}


def code_spans(text: str) -> list[str]:
    """Return what stands between single backticks, fenced blocks left out."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def fenced(text: str, language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)
    return [block for tag, block in blocks if tag == language]


@pytest.fixture(scope="module")
def known_flags() -> set[str]:
    """All flags of the commands that the documents show, and that these commands are there."""
    text = "\n".join(DOCS.values())
    shown = set(
        re.findall(r"(?:^|`)pagedrun ([a-z]+(?:-[a-z]+)*(?: [a-z]+\b(?![./]))?)", text, flags=re.M)
    )
    assert "generate" in {words.split()[0] for words in shown}
    known: set[str] = set()
    for words in shown:
        done = help_of(*words.split())
        assert done.returncode == 0, f"pagedrun {words}: {done.stderr}"
        known |= set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", done.stdout))
    return known


def help_of(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pagedrun", *words, "--help"],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("name", DOCS)
def test_every_flag_is_an_option(name: str, known_flags: set[str]) -> None:
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", DOCS[name]))
    assert told - known_flags == set()


def test_the_readme_names_flags_and_generate_has_them(known_flags: set[str]) -> None:
    """Guards the test above: a pattern that finds nothing would let everything pass."""
    assert {"--model", "--max-tokens", "--num-blocks"} <= known_flags
    assert "--no-such-flag" not in known_flags
    assert len(re.findall(r"--[a-z][a-z-]*", DOCS["README.md"])) >= 8


@pytest.mark.parametrize("name", DOCS)
def test_every_make_target_is_there(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    told = set(re.findall(r"(?:^|`)make ([a-z-]+)", DOCS[name], flags=re.M))
    assert told
    assert told - targets == set()
    if name == "README.md":
        assert {"demo", "test"} <= told


@pytest.mark.parametrize("name", DOCS)
def test_every_file_and_folder_named_is_there(name: str) -> None:
    spans = code_spans(DOCS[name])
    paths = {
        span
        for span in spans
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", span)
        and (span.startswith(FOLDERS) or re.search(r"\.(py|toml|md|json|jsonl|txt)$", span))
    }
    assert len(paths) >= 5
    missing = {path for path in paths if not (ROOT / path).exists()}
    assert {path for path in missing if not is_made_by_a_run(path)} == set()


def is_made_by_a_run(path: str) -> bool:
    return path in NOT_IN_THE_REPOSITORY or ".out.jsonl" in path


def test_the_folders_of_the_layouts_are_there() -> None:
    rows = re.findall(r"^\| (.+?) \|", DOCS["README.md"], flags=re.M)
    in_table = {folder for row in rows for folder in re.findall(r"`([\w/]+/)`", row)}
    (layout,) = fenced(DOCS["CONTRIBUTING.md"], "")
    in_layout = set(re.findall(r"^(\w+/)", layout, flags=re.M))
    assert in_table
    assert in_layout
    assert {folder for folder in in_table | in_layout if not (ROOT / folder).is_dir()} == set()


@pytest.mark.parametrize("name", DOCS)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", DOCS[name]):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        document = ROOT / (path or name)
        assert document.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", document.read_text(), flags=re.M)
            assert anchor in {
                re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in titles
            }


def test_the_python_of_the_readme_parses_and_calls_what_is_there() -> None:
    snippets = fenced(DOCS["README.md"], "python")
    assert snippets
    known = {"LLM": LLM, "SamplingParams": SamplingParams}
    called = set()
    for snippet in snippets:
        for node in ast.walk(ast.parse(snippet)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in known
            ):
                called.add(node.func.id)
                names = {keyword.arg: None for keyword in node.keywords if keyword.arg}
                inspect.signature(known[node.func.id]).bind(*node.args, **names)
    assert called == set(known)


def test_the_rows_of_the_readme_are_rows() -> None:
    from pagedrun.paged.job.inputs.json_line import parse_object

    (rows,) = fenced(DOCS["README.md"], "jsonl")
    for line in rows.splitlines():
        assert {"prompt", "messages"} & set(parse_object(line))


def test_the_run_of_the_readme_looks_like_one(tmp_path: Path) -> None:
    """Titles and labels only: the figures are those of one day."""
    runs = [block for block in fenced(DOCS["README.md"], "") if "rows: " in block]
    assert len(runs) == 1
    demo = ["-m", "pagedrun", "generate", str(ROOT / "recipes/demo/prompts.jsonl")]
    done = subprocess.run(
        [sys.executable, *demo, "--progress", "none", "--limit", "336"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert labels(runs[0]) == labels(done.stderr)
    (inspected,) = [block for block in fenced(DOCS["README.md"], "") if "Block map" in block]
    done = subprocess.run(
        [sys.executable, "-m", "pagedrun", *INSPECT],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert len(shapes(inspected)) > 9
    assert [label for label in shapes(inspected) if label not in shapes(done.stderr)] == []


INSPECT = ("inspect-cache", "prompts.out.jsonl", "--at", "20", "--row", "17")


def shapes(screen: str) -> list[str]:
    """Return the labels of an excerpt, its figures as signs and pictures left out."""
    told = [re.sub(r"[\d,]*\d", "#", label) for label in labels(screen)]
    return [label for label in told if not re.fullmatch("[SPCspc.#+= ]*", label)]


def labels(screen: str) -> list[str]:
    """Return the titles and the labels of a report, in order."""
    lines = [line.strip("─ ") for line in screen.splitlines() if "→" not in line]
    lines = [line for line in lines if not line.startswith("No --model")]
    return [re.split(r" {2,}", line)[0] for line in lines]
