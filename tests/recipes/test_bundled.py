"""The bundled recipes: each is what it says, and runs on its own sample as a user would run it."""

import json
import re
import shlex
import sys
from pathlib import Path

import jsonschema
import pytest
from jinja2 import Environment, meta

from pagedrun.cli.options.settings import recipe_settings
from pagedrun.recipes.recipe import Recipe, bundled_names, bundled_path
from tests.conftest import MakeModel
from tests.support.command import Command
from tests.support.jsonl import read_jsonl


def bundled(name: str) -> Recipe:
    path = bundled_path(name)
    return Recipe.read(path, recipe_settings(), path.name)


def test_there_are_five() -> None:
    assert bundled_names() == ["classify", "extract", "judge", "summarise", "synthetic"]


@pytest.mark.parametrize("name", bundled_names())
def test_its_columns_are_those_of_its_template_and_its_sample(name: str) -> None:
    recipe = bundled(name)
    tree = Environment().parse(recipe.values["prompt_template"])
    assert set(recipe.columns) == meta.find_undeclared_variables(tree)
    assert recipe.sample is not None
    rows = read_jsonl(recipe.sample)
    assert 8 <= len(rows) <= 20
    assert len({row["id"] for row in rows}) == len(rows)
    for column, what in recipe.columns.items():
        if not what.startswith("optional"):
            assert all(row[column] for row in rows), column
    extra = {"id", "expected"}
    assert set().union(*rows) - extra == set(recipe.columns)


@pytest.mark.parametrize("name", bundled_names())
def test_it_explains_itself_and_sets_what_matters(name: str) -> None:
    recipe = bundled(name)
    assert recipe.text.startswith("# ")
    assert 20 < len(recipe.description) < 110
    assert {"system", "prompt_template", "temperature", "max_tokens"} <= set(recipe.values)
    assert len(recipe.values["system"]) > 500  # what is shared is worth sharing
    assert sum(len(line) > 80 for line in recipe.text.splitlines()) <= 1  # an example on a line


def test_the_labels_expected_are_those_of_the_recipe() -> None:
    recipe = bundled("classify")
    assert recipe.sample is not None
    labels = set(re.findall(r"^- (\w+):", recipe.values["system"], flags=re.M))
    assert {row["expected"] for row in read_jsonl(recipe.sample)} == labels
    assert set(recipe.values["choice"]) == labels


def test_the_fields_extracted_are_those_that_the_recipe_explains() -> None:
    """In its order, and its own example is an answer that the schema allows."""
    recipe = bundled("extract")
    schema = json.loads(recipe.values["json_schema"])
    lines = re.findall(r"^- (.+?) \(", recipe.values["system"], flags=re.M)
    fields = [name for line in lines for name in re.findall(r'"(\w+)"', line)]
    assert fields == list(schema["properties"]) == schema["required"]
    (example,) = re.findall(r"^Answer: (.+)$", recipe.values["system"], flags=re.M)
    jsonschema.validate(json.loads(example), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(example), "invented": 1}, schema)


def test_no_answer_but_a_label_is_given(pagedrun: Command, tmp_path: Path) -> None:
    """Also by a model that knows nothing of the sort."""
    recipe, output = bundled("classify"), tmp_path / "out.jsonl"
    command = ("generate", recipe.sample, "--recipe", "classify", "--model", "demo", "-o", output)
    assert pagedrun(*command, "--temperature", 2, "--quiet")[0] == 0
    answers = read_jsonl(output)
    assert {answer["finish_reason"] for answer in answers} == {"stop"}
    found = {answer["text"] for answer in answers}
    assert 1 < len(found) <= len(found | set(recipe.values["choice"])) == 6


def test_a_flag_s_structure_takes_the_place_of_the_recipe_s(
    pagedrun: Command, tmp_path: Path
) -> None:
    recipe, output = bundled("classify"), tmp_path / "out.jsonl"
    command = ("generate", recipe.sample, "--recipe", "classify", "--model", "demo", "-o", output)
    assert pagedrun(*command, "--choice", "yes", "--quiet", "--limit", 2)[0] == 0
    assert [answer["text"] for answer in read_jsonl(output)] == ["yes", "yes"]
    assert pagedrun(*command, "--regex", "x+", "--quiet", "--limit", 2, "--overwrite")[0] == 0
    assert all(set(answer["text"]) == {"x"} for answer in read_jsonl(output))


@pytest.mark.parametrize(("name", "key"), [("classify", "choice"), ("extract", "json_schema")])
def test_without_the_library_it_is_one_sentence(
    name: str, key: str, pagedrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    sample = bundled(name).sample
    status, out, err = pagedrun("generate", sample, "--recipe", name, "--model", "demo", "--quiet")
    assert (status, out) == (2, "")
    assert err.startswith(f"Error: {key} ({name}.yaml line ")
    assert "needs the library llguidance: pip install 'llguidance>=1.5'" in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", bundled_names())
def test_it_runs_as_init_says(
    name: str,
    pagedrun: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_model: MakeModel,
) -> None:
    """On a tiny random model: what is answered is noise, what is asked is the recipe's."""
    monkeypatch.chdir(tmp_path)
    status, out, _ = pagedrun("recipes", "init", name, "mine")
    assert status == 0
    model = make_model("qwen3", "long", max_position_embeddings=4096)
    program, *words = shlex.split(out.strip().replace("MODEL", str(model)))
    assert program == "pagedrun"
    status, out, err = pagedrun(*words, "--max-tokens", "4", "--progress", "none")
    assert status == 0, err
    assert out == ""
    recipe = bundled(name)
    answers = read_jsonl(tmp_path / f"{name}.out.jsonl")
    assert recipe.sample is not None
    assert len(answers) == len(read_jsonl(recipe.sample))
    for answer in answers:
        assert answer["error"] is None
        assert len(answer["outputs"]) == recipe.values.get("n", 1)
        assert set(answer["input"]) <= {*recipe.columns, "expected"}
        # A token of this model is a byte: all of the system prompt was asked.
        assert answer["usage"]["prompt_tokens"] > len(recipe.values["system"].encode())
    manifest = json.loads((tmp_path / f"{name}.out.jsonl.run.json").read_text())
    assert manifest["recipe"] == {"path": f"mine/{name}.yaml", "sha256": recipe.sha256}
    origins = {key: each["origin"] for key, each in manifest["parameters"].items()}
    assert {key for key, origin in origins.items() if origin == "recipe"} == set(recipe.values) - {
        "max_tokens"
    }
    assert origins["max_tokens"] == "flag"
    report = json.loads((tmp_path / f"{name}.out.jsonl.report.json").read_text())
    assert report["prefix"]["hit_rate"] > 0.5  # the system prompt is computed once


def test_a_row_without_a_column_says_which(
    pagedrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": "Why?", "answer": "Because."}, {"question": "And?"}]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["--recipe", "judge", "--max-tokens", "2", "--progress", "none"]
    status, _, err = pagedrun("generate", "rows.jsonl", "--model", "demo", *words)
    assert status == 3
    assert "row" in err
    failed = read_jsonl(Path("rows.out.jsonl"))[0]
    assert failed["index"] == 1
    assert failed["error"] == {
        "code": "template_error",
        "message": "the prompt template needs a column 'answer', which the row does not have",
        "param": "answer",
        "line": 2,
    }


def test_a_resumed_run_notices_another_recipe(
    pagedrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"text": "a"}\n')
    recipe = Path("r.yaml")
    recipe.write_text("prompt_template: '{{ text }}'\nmax_tokens: 2")
    assert pagedrun("generate", "rows.jsonl", "--model", "demo", "--recipe", "r.yaml")[0] == 0
    assert (
        pagedrun("generate", "rows.jsonl", "--model", "demo", "--recipe", "r.yaml", "--resume")[0]
        == 0
    )
    recipe.write_text("prompt_template: '{{ text }}!'\nmax_tokens: 2")
    status, _, err = pagedrun(
        "generate", "rows.jsonl", "--model", "demo", "--recipe", "r.yaml", "--resume"
    )
    assert status == 2
    assert "prompt_template" in err


def test_plan_takes_a_recipe(pagedrun: Command) -> None:
    recipe = bundled("judge")
    status, out, _ = pagedrun(
        *("plan", str(recipe.sample), "--model", "demo", "--recipe", "judge", "--json", "--quiet")
    )
    assert status == 0
    assert json.loads(out)["tokens"]
