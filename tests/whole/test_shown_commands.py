"""Every command that README and the pages show does what it says: it runs, word for word.

The names of models and files are those of the pages. So a folder is made in which they are: files
of prompts, and a cache of the hub, offline, that has a small model under each name.

`PAGEDRUN_COMMAND` names the program, if another than this one's is meant: that of a wheel installed
into an empty environment, say.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MakeModel
from tests.support.pages import DOCS, NAMES, shown_commands

PROGRAM = [os.environ["PAGEDRUN_COMMAND"]] if "PAGEDRUN_COMMAND" in os.environ else None
# Measuring takes minutes; the others want a network, a cluster, a GPU, or an extra that is not
# installed by default.
LEFT_OUT = re.compile(r"(bench|lm-eval)\b|generate hf:|generate .*--(ray-address|gpus-per-replica)")
PLACEHOLDER = re.compile(r"[A-Z]+")
# As far as the pages need it: it tells what marks a thought.
TEMPLATE = (
    "{% for message in messages %}{% if '</think>' in message.content %}"
    "{{ message.content.split('</think>')[-1] }}{% else %}{{ message.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"
)
MODEL = r"(?<=--model )[\w.-]+/[\w.-]+"


def runs() -> list[list[str]]:
    """Return each command that is shown with words behind its name, once."""
    shown = [words for name in NAMES for words in shown_commands(DOCS[name]) if len(words) > 1]
    commands = {" ".join(words): words for words in shown}
    return [
        words
        for line, words in commands.items()
        if not LEFT_OUT.match(line) and not any(map(PLACEHOLDER.fullmatch, words))
    ]


def test_commands_are_found() -> None:
    """Guards the test below: a pattern that finds nothing would let everything pass."""
    assert len(runs()) > 40
    assert {"generate", "plan", "show", "ask", "diff", "inspect-cache"} <= {w[0] for w in runs()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, make_model: MakeModel) -> Path:
    """A folder with all that the pages name, in which a run of prompts.jsonl has finished."""
    folder = tmp_path_factory.mktemp("place")
    # As many tokens as the models have that the pages name: token ids are among the flags.
    model = make_model("qwen3", "named", vocab_size=151_936, max_position_embeddings=40_960)
    for name in set(re.findall(MODEL, "\n".join(" ".join(words) for words in runs()))):
        cached = folder / "hub" / f"models--{name.replace('/', '--')}"
        shutil.copytree(model, cached / "snapshots" / ("0" * 40))
        (cached / "snapshots" / ("0" * 40) / "chat_template.jinja").write_text(TEMPLATE)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text("0" * 40)
    (folder / "model").symlink_to(model)
    fill(folder)
    before = [
        ["prompts.jsonl"],
        ["rows.jsonl", "-o", "short.jsonl"],
        ["rows.jsonl", "-o", "long.jsonl"],
    ]
    for words in before:
        finished = run(folder, ["generate", *words, "--model", "demo"])
        assert finished.returncode == 0, finished.stderr
    return folder


def fill(folder: Path) -> None:
    """Write the files of prompts, and the others that commands name."""
    (folder / "data").mkdir()
    for name in ("prompts", "rows", "questions", "monday", "data/first", "data/second"):
        rows = [
            {"id": f"staff-40-{number}", "prompt": f"{number}?", "max_tokens": 3, "category": "a"}
            for number in range(40)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if name.startswith("data/"):  # ids are unique over all inputs
            (folder / f"{name}.jsonl").write_text(f'{{"prompt": "{name}", "max_tokens": 3}}\n' * 2)
    with gzip.open(folder / "rows.csv.gz", "wt") as file:
        file.write("question\nWhy?\nWho?\n")
    (folder / "rows.csv").write_text("question,answer,reference\n" + "a,b,c\n" * 20)
    (folder / "reviews.csv").write_text("id,review,stars\n1,Good.,5\n2,Bad.,1\n")
    (folder / "more.csv").write_text("prompt,max_tokens\nand more?,3\n")
    (folder / "notes.md").write_text("# Notes\nThere are none.\n")
    (folder / "person.json").write_text('{"type": "object", "maxProperties": 0}')


def run(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder` as if the user lived there, without a network."""
    there = {"HOME": str(folder), "HF_HUB_CACHE": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [*(PROGRAM or [sys.executable, "-m", "pagedrun"]), *words],
        cwd=folder,
        env={**os.environ, **there},
        input='{"prompt": "from a pipe"}\n',
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.long
@pytest.mark.parametrize("words", runs(), ids=" ".join)
def test_it_runs(place: Path, tmp_path: Path, words: list[str]) -> None:
    folder = tmp_path / "here"
    shutil.copytree(place, folder, symlinks=True)
    prepare(folder, words)
    done = run(folder, [re.sub("^~", str(folder), word) for word in words])
    assert done.returncode == (1 if words[0] == "diff" and is_changed(folder) else 0), done.stderr


def prepare(folder: Path, words: list[str]) -> None:
    """Do what comes before a command on its page, and clear away what it makes."""
    if words[0] == "generate" and "--resume" in words:
        begun = words[: words.index("--resume")]
        assert run(folder, [*begun, "--overwrite"]).returncode == 0
        rows = folder / "prompts.out.jsonl"
        rows.write_bytes(rows.read_bytes()[:999])  # as a run leaves them that dies
    elif words[0] == "generate":
        output = words[words.index("-o") + 1] if "-o" in words else "prompts.out.jsonl"
        for left in folder.glob(f"{output}*"):
            left.unlink()
    elif words[0] == "inspect-cache" and "~/prefixes" in words:
        stored = ["generate", "monday.jsonl", "--model", "demo", "--prefix-store", "prefixes"]
        assert run(folder, stored).returncode == 0
    if "judge.yaml" in words:
        assert run(folder, ["recipes", "init", "judge"]).returncode == 0


def is_changed(folder: Path) -> bool:
    return (folder / "short.jsonl").read_text() != (folder / "long.jsonl").read_text()
