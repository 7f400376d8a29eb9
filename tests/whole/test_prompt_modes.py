"""A question to a chat model gets one answer, whatever the form of the row that asks it."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from pagedrun.paged.llm import LLM
from pagedrun.paged.values.prompt_input import PromptInput
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder
from tests.support.command import Command
from tests.support.jsonl import read_jsonl

QUESTION = "Which room is Alan Hall in?"
CHAT: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
# Long enough, and drawn, so that another prompt does not have the same answer by chance.
SAMPLING: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "temperature": 1.0}
FLAGS = ("--max-tokens", 12, "--ignore-eos", "--temperature", 1, "--model", "demo")


def rows_of(*rows: dict[str, Any]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def table(folder: Path) -> Path:
    path = folder / "rows.csv"
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["question"], [QUESTION]])
    path.write_text(text.getvalue())
    return path


def lines(folder: Path) -> Path:
    path = folder / "rows.txt"
    path.write_text(f"{QUESTION}\n")
    return path


def records(folder: Path) -> Path:
    path = folder / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"question": [QUESTION]}), path)
    return path


FIELD = ("--prompt-field", "question")
WAYS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "prompt": (rows_of({"prompt": QUESTION}), ()),
    "messages": (rows_of({"messages": CHAT}), ()),
    "csv": (table, FIELD),
    "parquet": (records, FIELD),
    "text": (lines, ()),
    "template": (
        rows_of({"name": "Alan Hall"}),
        ("--prompt-template", "Which room is {{ name }} in?"),
    ),
}


@pytest.fixture
def generate(pagedrun: Command, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Run `pagedrun generate` with the demo model; return its rows."""

    def run(source: Path, *args: object) -> list[dict[str, Any]]:
        out = tmp_path / "out.jsonl"
        status, _, err = pagedrun("generate", source, "-o", out, *FLAGS, *args, "--overwrite")
        assert status == 0, err
        return read_jsonl(out)

    return run


@pytest.fixture(scope="module")
def asked() -> dict[bool, tuple[int, ...]]:
    """The tokens of the answer to the question as a chat (False), and as a text to complete."""
    llm = LLM(demo_model_folder())
    prompts: list[PromptInput] = [CHAT, llm.tokenizer.encode_batch([QUESTION], True)[0]]
    # A sample is drawn by its place, and here each is the first of its own call.
    chat, raw = (llm.generate([each], SamplingParams(**SAMPLING))[0] for each in prompts)
    assert chat.outputs[0].token_ids != raw.outputs[0].token_ids
    return {False: chat.outputs[0].token_ids, True: raw.outputs[0].token_ids}


def token_ids(row: dict[str, Any]) -> tuple[int, ...]:
    assert row["error"] is None
    return tuple(row["outputs"][0]["token_ids"])


@pytest.mark.parametrize("way", WAYS)
def test_a_question_has_one_answer(
    generate: Callable[..., list[dict[str, Any]]],
    asked: dict[bool, tuple[int, ...]],
    tmp_path: Path,
    way: str,
) -> None:
    write, args = WAYS[way]
    source = write(tmp_path)
    (row,) = generate(source, *args)
    assert token_ids(row) == asked[False]
    (row,) = generate(source, *args, "--raw")
    assert token_ids(row) == asked[way != "messages"]


def test_ask_gives_that_answer(
    pagedrun: Command, asked: dict[bool, tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for args, raw in ((), False), (("--raw",), True):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
        _, out, _ = pagedrun("ask", QUESTION, *FLAGS, *args, "--json", "--quiet")
        assert token_ids(json.loads(out)) == asked[raw]


def test_python_gives_that_answer(asked: dict[bool, tuple[int, ...]]) -> None:
    llm, params = LLM(demo_model_folder()), SamplingParams(**SAMPLING)
    asks: list[tuple[PromptInput, bool, bool]] = [
        (QUESTION, False, False),
        (QUESTION, True, True),
        ({"prompt": QUESTION, "raw": True}, False, True),
        ({"prompt": QUESTION, "raw": False}, True, False),
        ({"messages": CHAT}, True, False),
    ]
    for prompt, raw, is_raw in asks:
        (completion,) = llm.generate(prompt, params, raw=raw)
        assert completion.outputs[0].token_ids == asked[is_raw]
        (completion,) = llm.as_completed(prompt, params, raw=raw)
        assert completion.outputs[0].token_ids == asked[is_raw]


def test_what_stays_raw(
    generate: Callable[..., list[dict[str, Any]]],
    asked: dict[bool, tuple[int, ...]],
    tmp_path: Path,
) -> None:
    """A row that says so, a call for a completion, and what is scored."""
    (row,) = generate(rows_of({"prompt": QUESTION, "raw": True})(tmp_path))
    assert token_ids(row) == asked[True]
    body = {"model": "m", "prompt": QUESTION}
    call = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    (answer,) = generate(rows_of(call)(tmp_path))
    scored = {"prompt": QUESTION, "continuations": [" In 306."]}
    (score,) = generate(rows_of(scored)(tmp_path))
    num_prompt_tokens = row["usage"]["prompt_tokens"]
    assert answer["response"]["body"]["usage"]["prompt_tokens"] == num_prompt_tokens
    assert score["usage"]["prompt_tokens"] == num_prompt_tokens
    (behind_a_chat,) = generate(rows_of({**scored, "id": 1})(tmp_path), "--system", "Be brief.")
    assert behind_a_chat["usage"]["prompt_tokens"] > num_prompt_tokens


@pytest.mark.parametrize(
    ("args", "mode", "line"),
    [
        ((), "chat", "Prompts: chat template of the model"),
        (("--raw",), "raw", "Prompts: raw (--raw)"),
        (("--raw", "--system", "Be brief."), "chat", "Prompts: chat template of the model"),
        (
            ("--chat-template", "{{ messages }}"),
            "chat",
            "Prompts: chat template of --chat-template",
        ),
    ],
)
def test_the_first_line_and_the_records_tell_the_mode(
    pagedrun: Command, tmp_path: Path, args: tuple[str, ...], mode: str, line: str
) -> None:
    source, out = lines(tmp_path), tmp_path / "out.jsonl"
    status, _, err = pagedrun("generate", source, "-o", out, *FLAGS, *args)
    assert (status, err.splitlines()[0]) == (0, line)
    assert json.loads(Path(f"{out}.report.json").read_bytes())["config"]["prompt_mode"] == mode
    raw = json.loads(Path(f"{out}.run.json").read_bytes())["parameters"]["raw"]
    assert raw == {"value": "--raw" in args, "origin": "flag" if "--raw" in args else "default"}
    _, forecast, err = pagedrun("plan", source, "--model", "demo", *args, "--json")
    assert (json.loads(forecast)["config"]["prompt_mode"], err.splitlines()[0]) == (mode, line)
    _, row, err = pagedrun("show", source, "--model", "demo", *args, "--json")
    assert (json.loads(row)["prompt_mode"], err.splitlines()[0]) == (mode, line)


def test_a_file_of_both_kinds_is_counted(pagedrun: Command, tmp_path: Path) -> None:
    source = rows_of({"prompt": "a"}, {"prompt": "b", "raw": True}, {"prompt_token_ids": [5]}, {})(
        tmp_path
    )
    _, forecast, err = pagedrun("plan", source, "--model", "demo", "--json")
    assert json.loads(forecast)["config"]["prompt_mode"] == "mixed"
    line = "Prompts: chat template of the model in 1 of 3 rows, raw in 2"
    assert err.splitlines()[0] == line
    _, _, err = pagedrun("generate", source, "-o", tmp_path / "o", *FLAGS, "--progress", "json")
    told = [json.loads(each) for each in err.splitlines() if each.startswith('{"event": "prompts"')]
    assert told == [{"event": "prompts", "mode": "mixed", "chat": 1, "raw": 2}]


def test_a_bad_type_names_line_and_key(pagedrun: Command, tmp_path: Path) -> None:
    source = rows_of({"prompt": "a"}, {"prompt": "b", "raw": "yes"})(tmp_path)
    out = tmp_path / "out.jsonl"
    status, _, err = pagedrun("generate", source, "-o", out, *FLAGS, "--ordered")
    assert (status, "line 2: raw must be true or false" in err) == (3, True)
    _, failed = read_jsonl(out)
    error = failed["error"]
    assert (error["code"], error["param"], error["line"]) == ("invalid_param", "raw", 2)


class TestRecipes:
    def test_a_recipe_says_it_and_a_flag_takes_it_back(
        self, pagedrun: Command, tmp_path: Path
    ) -> None:
        source, recipe = lines(tmp_path), tmp_path / "r.yaml"
        recipe.write_text("raw: true\n")
        show = ("show", source, "--model", "demo", "--recipe", recipe, "--json")
        _, row, err = pagedrun(*show)
        assert (json.loads(row)["prompt_mode"], err.splitlines()[0]) == (
            "raw",
            "Prompts: raw (set by the recipe)",
        )
        assert json.loads(pagedrun(*show, "--no-raw")[1])["prompt_mode"] == "chat"


class TestResume:
    """What a run has begun goes on in the same mode, and another one is named and refused."""

    @pytest.fixture
    def begun(self, pagedrun: Command, tmp_path: Path) -> Callable[..., tuple[Path, Path, bytes]]:
        """Return input and output of a run that was killed after its first row."""

        def run(*args: str) -> tuple[Path, Path, bytes]:
            source, out = (
                rows_of(*({"prompt": f"{n} {QUESTION}"} for n in "ab"))(tmp_path),
                tmp_path / "o",
            )
            status, _, err = pagedrun("generate", source, "-o", out, *FLAGS, *args, "--ordered")
            assert status == 0, err
            whole = out.read_bytes()
            out.write_bytes(whole[: whole.index(b"\n") + 1])
            return source, out, whole

        return run

    @pytest.mark.parametrize("args", [(), ("--raw",)])
    def test_the_mode_is_kept(
        self,
        pagedrun: Command,
        begun: Callable[..., tuple[Path, Path, bytes]],
        args: tuple[str, ...],
    ) -> None:
        source, out, whole = begun(*args)
        resume = ("generate", source, "-o", out, *FLAGS, "--resume", "--ordered")
        other = ("--no-raw",) if args else ("--raw",)
        status, _, err = pagedrun(*resume, *other)
        assert (status, "the output was started with another --raw" in err) == (2, True)
        assert pagedrun(*resume)[0] == 0
        assert out.read_bytes() == whole

    def test_an_older_run_was_raw(
        self, pagedrun: Command, begun: Callable[..., tuple[Path, Path, bytes]]
    ) -> None:
        source, out, whole = begun("--raw")
        path = Path(f"{out}.run.json")
        manifest = json.loads(path.read_bytes())
        del manifest["parameters"]["raw"]
        path.write_text(json.dumps(manifest))
        resume = ("generate", source, "-o", out, *FLAGS, "--resume", "--ordered")
        assert pagedrun(*resume, "--no-raw")[0] == 2
        status, _, err = pagedrun(*resume)
        assert (status, err.splitlines()[0]) == (0, "Prompts: raw (as in the run that is resumed)")
        assert out.read_bytes() == whole
        assert json.loads(path.read_bytes())["parameters"]["raw"]["value"] is True

    def test_files_that_are_made_keep_it_too(self, pagedrun: Command, tmp_path: Path) -> None:
        """Their journal is gone when all rows are there; the manifest stays."""
        source, out = lines(tmp_path), tmp_path / "o.parquet"
        run = ("generate", source, "-o", out, *FLAGS)
        assert pagedrun(*run, "--raw")[0] == 0
        assert pagedrun(*run, "--resume")[0] == 0
        assert pagedrun(*run, "--resume", "--no-raw")[0] == 2


def test_answers_of_the_other_mode_are_not_taken(pagedrun: Command, tmp_path: Path) -> None:
    source, old = lines(tmp_path), tmp_path / "old.jsonl"
    run = ("generate", source, *FLAGS)
    assert pagedrun(*run, "-o", old, "--raw")[0] == 0
    num_copied = {}
    for name, args in ("raw", ("--raw",)), ("chat", ()):
        out = tmp_path / f"{name}.jsonl"
        assert pagedrun(*run, "-o", out, "--from", old, *args)[0] == 0
        report = json.loads(Path(f"{out}.report.json").read_bytes())
        num_copied[name] = report["rows"]["copied"]
    assert num_copied == {"raw": 1, "chat": 0}
