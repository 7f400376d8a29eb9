"""What README, the pages under docs/ and their like say is there: commands, flags, files, links,
and the Python; that it is in the glossary's words; and that the recorded runs look like real ones.
"""

import ast
import inspect
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from pagedrun import LLM, SamplingParams
from pagedrun.cli.main import app
from pagedrun.cli.report.end_of_run import draw_short_report
from pagedrun.recipes.demo import demo_model_folder
from tests.support.pages import DOCS, NAMES, PAGES, ROOT, code_spans, fenced, shown_commands

FOLDERS = ("cli/", "paged/", "kernels/", "recipes/", "tests/", "benchmarks/", "docs/", "src/")
# A run or a command makes these, or they are whatever a user or another library has.
NOT_IN_THE_REPOSITORY = {
    ".jsonl",
    "OUT.errors.jsonl",
    "OUT.journal.jsonl",
    "OUT.report.json",
    "OUT.run.json",
    "OUT.state.json",
    "adapter_config.json",
    "added_tokens.json",
    "config.json",
    "generation_config.json",
    "judge.yaml",
    "modules.json",
    "router_config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
    "path/to/model",
    "special_tokens_map.json",
    "tokenizer.json",
}
FLAG = r"(?<![\w-])--[a-z](?:[a-z-]*[a-z])?(?![\w-])"
# Options of other programs, and one that pagedrun does not have and says so.
# Those of vLLM, lm-eval, the scripts under benchmarks/, Ray's launcher, Slurm and CMake.
OTHER_FLAGS = {
    *("--trust-remote-code", "--tasks", "--part", "--dry-run"),
    *("--generate", "--head", "--port", "--address", "--block", "--nodes", "--ntasks-per-node"),
    *("--exclusive", "--level", "--specialised", "--build", "--target"),
    *("--narrow", "--room", "--sample", "--write-durations"),  # of the tests
}

# Words that were given up for the field's own terms, or for plainer English.
OLD_WORDS = {
    r"\bstays\b": "residency log; is kept",
    r"\bforesight\b": "output-length predictor",
    r"(?-i:\bChoices\b)": "SamplingBatch",
    r"\b(peaks|masses)\b": "max, sum_exp, acc",
    r"\btail[ -]waste\b": "internal fragmentation",
    r"(?<!--)(?<!--no-)(?<!-no-)(?<!\bno-)\bprefix-once\b": "shared-prefix attention",
    r"\blag(s|ged|ging)?\b": "async scheduling",
    r"\bunwant\w*": "unpin",
    r"\broofs?\b": "roofline",
    r"\bthinned\b": "decimated",
    r"\bnobody's\b": "a plain verb",
    r"\b(is|are|was|were) told\b": "a plain verb",
    r"\bstands\b": "a plain verb",
    r"\bof today's\b": "a plain verb",
    r"\b(give|gives|gave|giving) way\b": "is preempted",
    r"\blets? in\b": "admitted",
    r"\b(go|goes|gone|going) on with\b": "continue, resume",
    r"\b(taken back|let pass|as ever)\b": "a plain verb",
    r"\blikeliest\b": "most likely",
    r"\bfew bits\b": "quantized",
    r"\b(quanti|utili|recogni)s\w*": "US spelling, with a z",
}


def the_block_with(words: str, name: str) -> str:
    """Return the one block without a language that has `words`."""
    (block,) = [each for each in fenced(DOCS[name], "") if words in each]
    return block


@cache
def commands() -> dict[str, Any]:
    """Return every command by its words, `pagedrun` itself by none.

    They are Click's, of Click itself or of the copy in newer versions of Typer.
    """

    def below(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        yield words, command
        for name, child in getattr(command, "commands", {}).items():
            yield from below(child, f"{words} {name}".strip())

    return dict(below(typer.main.get_command(app), ""))


def flags_of(command: Any) -> set[str]:
    return {
        flag
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("-")
    } | {"--help", "-h"}


def find_command(words: list[str]) -> tuple[str, list[str]]:
    """Return the name of the command that is meant, and the words after it."""
    known = commands()
    for count in (2, 1):
        name = " ".join(words[:count])
        if len(words) >= count and name in known:
            return name, words[count:]
    return "", words


@pytest.mark.parametrize("name", NAMES)
def test_every_command_shown_parses(name: str) -> None:
    """Flags are those of the very command, have values where they need them, and no more words
    follow than it has arguments. Files need not be there.
    """
    for words in shown_commands(DOCS[name]):
        found, rest = find_command(words)
        assert found or not rest or rest[0].startswith("-"), f"pagedrun {' '.join(words)}"
        command = commands()[found]
        if not rest:  # `pagedrun generate`: the name of a command
            continue
        parser = command.make_parser(command.context_class(command, **command.context_settings))
        _, left, _ = parser.parse_args(list(rest))  # raises what Click says of a usage error
        assert left == [] or found in ("", "bench", "recipes"), f"pagedrun {' '.join(words)}"


def test_commands_are_found_where_they_are_shown() -> None:
    """Guards the test above: a pattern that finds nothing would let everything pass."""
    text = "```sh\npagedrun plan a \\\n  --top 3 | jq  # x\n```\nand `pagedrun generate --limit 1`"
    assert list(shown_commands(text)) == [["plan", "a", "--top", "3"], ["generate", "--limit", "1"]]
    assert sum(1 for text in DOCS.values() for _ in shown_commands(text)) > 40


@pytest.mark.parametrize("name", NAMES)
def test_every_flag_named_is_an_option(name: str) -> None:
    known = {flag for command in commands().values() for flag in flags_of(command)}
    shown = "\n".join([*code_spans(DOCS[name]), *re.findall(r"^[^`]*$", DOCS[name], flags=re.M)])
    named = set(re.findall(FLAG, shown)) - OTHER_FLAGS
    assert named - known == set()


def test_flags_that_are_not_there_would_be_noticed() -> None:
    known = {flag for command in commands().values() for flag in flags_of(command)}
    assert {"--model", "--no-prefix-once", "--prune-to"} <= known
    assert "--no-such-flag" not in known


def test_every_flag_of_generate_is_explained_and_no_other() -> None:
    explained = set()
    for cell in re.findall(r"^\| (`-.+?) \|", DOCS["docs/flags.md"], flags=re.M):
        explained |= set(re.findall(r"`(-[\w-]+)`", cell))
    there = {flag for flag in flags_of(commands()["generate"]) if not flag.startswith("--no-")}
    assert explained == there - {"--help", "-h"}


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    readme = DOCS["README.md"]
    assert len(readme.splitlines()) <= 150
    assert {page for page in PAGES if f"]({page})" not in readme} == set()


@pytest.mark.parametrize("name", NAMES)
def test_every_make_target_is_there(name: str) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    named = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", DOCS[name], flags=re.M))
    assert named - targets == set()
    if name == "README.md":
        assert {"demo", "test"} <= named


@pytest.mark.parametrize("name", NAMES)
def test_every_file_and_folder_named_is_there(name: str) -> None:
    paths = {
        span
        for span in code_spans(DOCS[name])
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", span)
        and (span.startswith(FOLDERS) or re.search(r"\.(py|toml|md|json|jsonl|yaml|txt)$", span))
    }
    missing = {path for path in paths if not (ROOT / path).exists()}
    assert {path for path in missing if not is_made_by_a_run(path)} == set()


def is_made_by_a_run(path: str) -> bool:
    return path in NOT_IN_THE_REPOSITORY or ".out.jsonl" in path


def test_the_folders_of_the_layouts_are_there() -> None:
    in_tables = {
        folder
        for name in ("README.md", "docs/architecture.md")
        for row in re.findall(r"^\| (.+?) \|", DOCS[name], flags=re.M)
        for folder in re.findall(r"`([\w/]+/)`", row)
    }
    (layout,) = fenced(DOCS["CONTRIBUTING.md"], "")
    in_layout = set(re.findall(r"^(\w+/)", layout, flags=re.M))
    assert in_tables
    assert in_layout
    assert {folder for folder in in_tables | in_layout if not (ROOT / folder).is_dir()} == set()


def test_what_is_to_be_installed_can_be_had() -> None:
    """No index has pagedrun, and versions are those that pyproject.toml asks for."""
    needs = (ROOT / "pyproject.toml").read_text()
    sources = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("Makefile")]
    sources += [
        path for room in ("cli", "paged", "kernels") for path in ROOT.glob(f"{room}/**/*.py")
    ]
    asked = [
        (path.relative_to(ROOT).as_posix(), found)
        for path in sources
        for found in re.findall(r"pip install ([^\n`]*)", path.read_text())
    ]
    assert ("docs/evaluation.md", "'lm_eval>=0.4.13'") in [(p, f.split()[0]) for p, f in asked]
    for path, packages in asked:
        assert not re.search(r"(?<![\w/.-])pagedrun\b", packages.partition("#")[0]), path
        for wanted in re.findall(r"'([\w-]+>=[\d.]+)'", packages):
            assert f'"{wanted}"' in needs, f"{path}: {wanted}"


@pytest.mark.parametrize("name", DOCS)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", DOCS[name]):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        document = (ROOT / name).parent / path if path else ROOT / name
        assert document.exists(), target
        assert document.resolve().is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(document.read_text()), target


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives the titles of a page."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.M)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def test_python_shown_parses_and_calls_what_is_there() -> None:
    snippets = [inspect.cleandoc(each) for text in DOCS.values() for each in fenced(text, "python")]
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


@pytest.mark.heavy("runs what a page of the documentation shows")
def test_the_page_for_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """All its blocks, one after the other, with the bundled model."""
    names: dict[str, Any] = {}
    blocks = fenced(DOCS["docs/python.md"], "python")
    for block in blocks:
        exec(inspect.cleandoc(block).replace("path/to/model", str(demo_model_folder())), names)
    assert names["answer"].outputs[0].logprobs
    assert names["from_ids"].outputs[0].token_ids
    assert len(names["scored"].scores) == 2
    assert names["completion"].request.index == 3  # at which the last loop was left
    assert names["completion"].error is None
    assert names["llm"].generate("after that")[0].error is None
    told = capsys.readouterr().out.splitlines()
    errors = re.findall(r"print\(error.*\)  # (.+)", "\n".join(blocks))
    assert len(errors) == 2
    assert set(errors) <= set(told)


def test_the_rows_of_the_readme_are_rows() -> None:
    from pagedrun.paged.job.inputs.json_line import parse_record

    (rows,) = fenced(DOCS["README.md"], "jsonl")
    for line in rows.splitlines():
        assert {"prompt", "messages"} & set(parse_record(line).columns)


# ── Words ───────────────────────────────────────────────────────────────────────────────────────


def prose() -> dict[str, str]:
    """Return the texts that users read, by name: pages, unreleased changes, every --help,
    and the pages of --html."""
    texts = {name: text for name, text in DOCS.items() if name != "CHANGELOG.md"}
    texts["CHANGELOG.md"] = DOCS["CHANGELOG.md"].partition("## [Unreleased]")[2].split("\n## [")[0]
    for words, command in commands().items():
        options = (getattr(parameter, "help", None) or "" for parameter in command.params)
        texts[f"pagedrun {words} --help"] = "\n".join([command.help or "", *options])
    for template in (ROOT / "cli/page/assets").glob("*.html"):
        texts[template.name] = template.read_text()
    return texts


@pytest.mark.parametrize("word", OLD_WORDS)
def test_texts_are_in_the_words_of_the_glossary(word: str) -> None:
    # The one place that names an old word, to say what it is called now.
    allowed = {("docs/glossary.md", "tail waste")}
    found = [
        (name, match[0])
        for name, text in prose().items()
        for match in re.finditer(word, text, flags=re.I)
    ]
    assert [each for each in found if each not in allowed] == [], f"say: {OLD_WORDS[word]}"


def test_old_words_would_be_found() -> None:
    """Guards the test above, and flags that keep their names."""
    for text in ("a prefix-once run", "the Choices of a step", "it stands there", "we are told"):
        assert any(re.search(word, text, flags=re.I) for word in OLD_WORDS), text
    for text in ("--no-prefix-once", "choices", "`--prefix-once`", "--compare no-prefix-once"):
        assert not any(re.search(word, text, flags=re.I) for word in OLD_WORDS), text


def test_the_glossary_has_each_noun_once() -> None:
    cells = re.findall(r"^\| ([^|]+) \| [^|]", DOCS["docs/glossary.md"], flags=re.M)
    terms = [term for cell in cells if cell != "term" for term in cell.split(", ")]
    assert len(terms) > 40
    assert sorted(terms) == sorted(set(terms))


# ── Recorded runs ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the bundled prompts; `screen.txt` in it is its full report."""
    folder = tmp_path_factory.mktemp("demo")
    given = str(ROOT / "recipes/demo/prompts.jsonl")
    flags = ("--progress", "none", "--report-view", "full", "--speculate", "off")  # as time allows
    screen = run_in(folder, "generate", given, *flags)
    (folder / "screen.txt").write_text(screen)
    return folder


def run_in(folder: Path, *words: str) -> str:
    """Return what a command printed on stderr, 80 columns wide."""
    done = subprocess.run(
        [sys.executable, "-m", "pagedrun", *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_recorded_run_looks_like_one(demo: Path) -> None:
    """Titles and labels only: the figures are those of one day."""
    screen = labels((demo / "screen.txt").read_text())
    assert labels(the_block_with("rows: ", "docs/report.md")) == screen
    excerpt = labels(the_block_with("KV pool", "README.md"))
    assert len(excerpt) > 9
    report = json.loads((demo / "prompts.out.jsonl.report.json").read_text())
    stream = io.StringIO()
    draw_short_report(report, Console(file=stream, width=80))
    shown = labels(stream.getvalue())
    rest = iter([*screen[: screen.index("Answers")], *shown, screen[-1]])
    assert [label for label in excerpt if label not in rest] == []  # all of them, in this order


def test_the_row_of_the_readme_is_one_of_the_run(demo: Path) -> None:
    (row,) = fenced(DOCS["README.md"], "json")
    text = re.search(r'"text":"(.*?)"', row)
    assert text is not None
    rows = (demo / "prompts.out.jsonl").read_text().splitlines()
    (same,) = [each for each in rows if text[0] in each]
    without_cache = [re.sub(r'"cached_tokens":\d+', "", each) for each in (same, row.strip())]
    assert without_cache[0] == without_cache[1]


def test_the_recorded_block_map_looks_like_one(demo: Path) -> None:
    inspected = the_block_with("Block map", "docs/inspect.md")
    screen = run_in(demo, "inspect-cache", "prompts.out.jsonl", "--at", "20", "--row", "17")
    assert len(shapes(inspected)) > 9
    assert [label for label in shapes(inspected) if label not in shapes(screen)] == []


@pytest.mark.heavy("runs what a page of the documentation shows")
def test_the_recorded_plan_looks_like_one(tmp_path: Path) -> None:
    """To the last figure: the number format and the kernel set are given, not the processor's."""
    planned = the_block_with("Block sizes", "docs/plan.md")
    given = str(ROOT / "recipes/demo/prompts.jsonl")
    format_and_kernels = ("--dtype", "bfloat16", "--kernel-set", "portable")
    flags = ("--max-tokens", "32", *format_and_kernels, "--progress", "none")
    assert " ".join(flags[:-2]) in DOCS["docs/plan.md"]
    screen = run_in(tmp_path, "plan", given, *flags)
    excerpt, lines = ([line.split() for line in each.splitlines()] for each in (planned, screen))
    assert len(excerpt) > 40
    is_rule = [all(set(word) == {"─"} for word in line) for line in excerpt]
    found = [line for line, skip in zip(excerpt, is_rule, strict=True) if not skip]
    assert [line for line in found if line not in lines] == []


def shapes(screen: str) -> list[str]:
    """Return the labels of an excerpt, its figures as signs and pictures left out."""
    said = [re.sub(r"[\d,]*\d", "#", label) for label in labels(screen)]
    return [label for label in said if not re.fullmatch("[SPCspc.#+= ▁-█]*", label)]


def labels(screen: str) -> list[str]:
    """Return the titles and the labels of a report, in order."""
    lines = [line.strip("─ ") for line in screen.splitlines() if "→" not in line]
    lines = [line for line in lines if not line.startswith("No --model")]
    lines = [re.sub(r"^[\d.hms ]+ in all.*", "# s in all", line) for line in lines]
    return [re.split(r" {2,}", line)[0] for line in lines]
