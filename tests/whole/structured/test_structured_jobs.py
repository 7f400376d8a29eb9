"""Structured output from the command: flags, recipes, rows, CSV, batch calls, resume."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pandas
import pytest

from tests.conftest import MakeModel
from tests.support.command import Command
from tests.support.jsonl import read_jsonl, write_jsonl

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yz"]}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Path:
    return make_model("qwen3", "structured", max_position_embeddings=400)


class Done(NamedTuple):
    status: int
    err: str


class Job:
    """Runs `generate` on rows, and reads what it wrote."""

    def __init__(self, pagedrun: Command, model: Path, folder: Path) -> None:
        self._pagedrun = pagedrun
        self._model = model
        self.folder = folder
        self.out = folder / "out.jsonl"

    def __call__(self, rows: Any, *flags: object, name: str = "rows.jsonl") -> Done:
        path = self.folder / name
        if isinstance(rows, str):
            path.write_text(rows, encoding="utf-8")
        else:
            write_jsonl(path, rows)
        return self.again("--overwrite", *flags, name=name)

    def again(self, *flags: object, name: str = "rows.jsonl") -> Done:
        """Run on rows that are there."""
        given = ("-o", self.out, "--model", self._model, "--dtype", "float32", "--quiet", *flags)
        status, _, err = self._pagedrun("generate", self.folder / name, *given)
        return Done(status, err)

    def rows(self) -> list[Any]:
        return sorted(read_jsonl(self.out), key=lambda row: row["index"])


@pytest.fixture
def job(pagedrun: Command, model: Path, tmp_path: Path) -> Job:
    return Job(pagedrun, model, tmp_path)


def test_flags(job: Job) -> None:
    (job.folder / "schema.json").write_text(json.dumps(SCHEMA))
    (job.folder / "g.lark").write_text('start: "a" /[bc]/ "d"\n')
    for flags, allowed in (
        (("--json-schema", json.dumps(SCHEMA)), None),
        (("--json-schema", f"@{job.folder / 'schema.json'}"), None),
        (("--regex", "a[bc]d"), ("abd", "acd")),
        (("--choice", "one, two", "--choice", "three"), ("one, two", "three")),
        (("--grammar", f"@{job.folder / 'g.lark'}"), ("abd", "acd")),
    ):
        assert job([{"prompt": "Hi"}], *flags).status == 0
        [row] = job.rows()
        assert row["finish_reason"] == "stop"
        if allowed is None:
            assert json.loads(row["text"]) in ({"a": "x"}, {"a": "yz"})
        else:
            assert row["text"] in allowed


def test_rows_csv_recipe_and_batch_calls(job: Job) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}
    call = {"custom_id": "c", "method": "POST", "url": "/v1/completions"}
    rows = [
        {"prompt": "a", "raw": True, "json_schema": SCHEMA, "kept": 1},
        {"prompt": "a", "sampling_params": {"regex": "a[bc]d"}},
        {"prompt": "a", "raw": True, "response_format": wanted},
        {"prompt": "a", "response_format": {"type": "text"}, "choice": ["one"]},
        {**call, "body": {"prompt": "a", "response_format": wanted}},
    ]
    recipe = job.folder / "r.yaml"
    recipe.write_text("choice: [yes it is, no]\nmax_tokens: 60\n")
    assert job([*rows, {"prompt": "a"}], "--recipe", recipe).status == 0
    schema, regex, same, choice, answered, free = job.rows()
    assert schema["input"] == {"kept": 1}
    assert json.loads(schema["text"]) in ({"a": "x"}, {"a": "yz"})
    assert same["text"] == schema["text"]
    assert same["input"] == {}
    assert regex["text"] in ("abd", "acd")
    assert choice["text"] == "one"
    [made] = answered["response"]["body"]["choices"]
    assert (made["text"], made["finish_reason"]) == (schema["text"], "stop")
    assert free["text"] in ("yes it is", "no")
    text = 'prompt,regex,choice,json_schema\na,a[bc]d,,\na,,"[""one""]",\na,,,"' + json.dumps(
        SCHEMA
    ).replace('"', '""')
    assert job(text + '"\n', name="rows.csv").status == 0
    regex, choice, schema = job.rows()
    assert regex["text"] in ("abd", "acd")
    assert choice["text"] == "one"
    assert json.loads(schema["text"]) in ({"a": "x"}, {"a": "yz"})


BAD_ROWS: list[tuple[dict[str, Any], str, str]] = [
    ({"json_schema": "{"}, "invalid_param", "json_schema"),
    ({"json_schema": {"type": "strin"}}, "invalid_grammar", "json_schema"),
    ({"json_schema": {"enum": list(range(100_000))}}, "invalid_param", "json_schema"),
    ({"json_schema": '{"items":' * 10_000 + "{}" + "}" * 10_000}, "invalid_param", "json_schema"),
    ({"json_schema": {"$ref": "#"}}, "invalid_grammar", "json_schema"),
    ({"regex": "(?=a)b"}, "invalid_grammar", "regex"),
    ({"regex": 7}, "invalid_param", "regex"),
    ({"regex": "(a"}, "invalid_grammar", "regex"),
    ({"choice": "a"}, "invalid_param", "choice"),
    ({"grammar": "start: b"}, "invalid_grammar", "grammar"),
    ({"json_object": 1}, "invalid_param", "json_object"),
    ({"regex": "a", "choice": ["a"]}, "invalid_param", "choice"),
    ({"response_format": {"type": "xml"}}, "invalid_param", "response_format"),
    ({"response_format": "json"}, "invalid_param", "response_format"),
    ({"response_format": {"type": "json_schema"}}, "invalid_param", "response_format"),
    (
        {"response_format": {"type": "json_object"}, "json_object": True},
        "invalid_param",
        "response_format",
    ),
]


def test_bad_rows_fail_alone(job: Job) -> None:
    rows = [{"prompt": "a", **given} for given, _, _ in BAD_ROWS]
    assert job([*rows, {"prompt": "a", "max_tokens": 3}]).status == 3
    *bad, good = job.rows()
    found = [(row["error"]["code"], row["error"]["param"]) for row in bad]
    assert found == [(code, param) for _, code, param in BAD_ROWS]
    assert good["error"] is None
    refused = job([rows[1]], "--strict")
    assert refused.status == 2
    assert "json_schema cannot be compiled" in refused.err


def test_a_bad_flag_ends_the_command_before_the_weights(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = job([{"prompt": "a"}], "--regex", "(a")
    assert done.status == 2
    assert "--regex cannot be compiled" in done.err
    done = job([{"prompt": "a"}], "--regex", "a", "--choice", "b")
    assert done.status == 2
    assert "exclude each other" in done.err
    monkeypatch.setitem(sys.modules, "llguidance", None)
    done = job([{"prompt": "a"}], "--regex", "a")
    assert done.status == 2
    assert "--regex needs the library llguidance" in done.err
    assert "pip install 'llguidance>=1.5'" in done.err
    assert job([{"prompt": "a", "regex": "a"}, {"prompt": "a", "max_tokens": 2}]).status == 3
    missing, good = job.rows()
    assert (missing["error"]["code"], missing["error"]["param"]) == ("missing_library", "regex")
    assert good["error"] is None


def test_resume_gives_the_rows_of_a_run_that_was_not_cut(job: Job) -> None:
    rows = [
        {"prompt": f"row {i}", "json_schema": SCHEMA, "temperature": 1.0, "n": 2, "seed": i}
        for i in range(8)
    ]
    assert job(rows).status == 0
    whole = {row["index"]: row["outputs"] for row in job.rows()}
    assert len({json.dumps(each) for each in whole.values()}) > 1
    lines = job.out.read_bytes().splitlines(keepends=True)
    job.out.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    done = job.again("--resume", "--max-num-seqs", 3, "--no-jump-ahead")
    assert done.status == 0, done.err
    assert {row["index"]: row["outputs"] for row in job.rows()} == whole


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_table_of_pandas_with_two_columns_of_the_answers(
    delimiter: str, pagedrun: Command, model: Path, tmp_path: Path
) -> None:
    """Quotes and newlines in cells, an index, and keys that are columns: opened as it was."""
    schema = {
        "type": "object",
        "properties": {"label": {"enum": ["good", "bad"]}, "score": {"enum": [1, 2.5]}},
        "required": ["label", "score"],
        "additionalProperties": False,
    }
    frame = pandas.DataFrame(
        {
            "review": ['"Good", he said;\nand left.', "a, b; c", "=1+1"],
            "stars": [5, 1, 3],
            "seen": pandas.to_datetime(["2024-02-29", "1999-12-31", "2020-01-01"]),
        }
    )
    frame.to_csv(tmp_path / "in.csv", sep=delimiter)
    frame.to_parquet(tmp_path / "in.parquet")
    flags = ["--prompt-field", "review", "--json-schema", json.dumps(schema), "--explode-json"]
    flags += ["--model", str(model), "--dtype", "float32", "--quiet"]
    for kind in ("csv", "parquet"):
        output = tmp_path / f"out.{kind}"
        status, _, err = pagedrun("generate", tmp_path / f"in.{kind}", "-o", output, *flags)
        assert status == 0, err
        found = (
            pandas.read_csv(output, parse_dates=["seen"])
            if kind == "csv"
            else pandas.read_parquet(output)
        )
        pandas.testing.assert_frame_equal(found[list(frame)], frame, check_dtype=False)
        assert found["seen"].dtype == frame["seen"].dtype
        assert found["error"].isna().all()
        answers = [json.loads(answer) for answer in found["answer"]]
        assert found["json.label"].tolist() == [answer["label"] for answer in answers]
        assert found["json.score"].tolist() == [answer["score"] for answer in answers]
        assert set(found) == {
            *(*frame, "answer", "finish_reason", "error"),
            *("json.label", "json.score"),
        }
