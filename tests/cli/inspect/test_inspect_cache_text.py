"""`inspect-cache --show-text`: prompts read again from the input, or one warning why not."""

import hashlib
import json
from pathlib import Path

import pytest

from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.recipes.demo import demo_model_folder
from tests.cli.finished_run import HOSTILE, SYSTEM, beside
from tests.cli.inspect.conftest import InspectCache


def test_text_is_shown_on_demand_only_and_made_safe(run: InspectCache, output: Path) -> None:
    _, out, err = run(output, "--row", "2", "--json")
    assert "Ann" not in err + out
    status, out, err = run(
        output, "--row", "2", "--json", "--show-text", "--system", SYSTEM, "--top", "5"
    )
    assert status == 0
    found = json.loads(out)
    assert SYSTEM in found["rows"][0]["text"]
    assert f"room 2? {HOSTILE}" in found["rows"][0]["text"]
    assert found["prefixes"]["top"][0]["text"]
    assert found["notes"] == []
    assert "Ann" in err
    assert "\x1b" not in err
    assert "\u202e" not in err


def test_the_text_of_a_prefix_is_what_its_tokens_say(run: InspectCache, output: Path) -> None:
    tokenizer = Tokenizer.from_folder(demo_model_folder())
    chat = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Who works with Ann in room 1? {HOSTILE}"},
    ]
    (ids,) = tokenizer.encode_batch([tokenizer.render_chat(chat)], add_special_tokens=False)
    _, out, _ = run(output, "--json", "--quiet", "--show-text", "--system", SYSTEM)
    nodes = json.loads(out)["prefixes"]["top"]
    assert [node["text"] for node in nodes] == [
        tokenizer.decode(ids[:8], skip_special_tokens=False),
        tokenizer.decode(ids[8:12], skip_special_tokens=False),
    ]


def spoil(output: Path, what: str) -> list[str]:
    """Make the texts unobtainable; return the flags to ask for them all the same."""
    rows, manifest = output.with_name("rows.jsonl"), beside(output, ".run.json")
    saved = json.loads(manifest.read_text())
    if what == "the input of the run":
        rows.unlink()
    elif what == "rows.jsonl has changed since":
        rows.write_text(rows.read_text() + '{"prompt": "one more"}\n')
    elif what == "no manifest":
        manifest.unlink()
    elif what == "is not a manifest of":
        manifest.write_text(json.dumps({**saved, "parameters": {}}))
    elif what == "the model of the run":
        manifest.write_text(json.dumps({**saved, "model": {**saved["model"], "path": "/nowhere"}}))
    elif what == "have changed since the run":
        model = {**saved["model"], "files_sha256": "0"}
        manifest.write_text(json.dumps({**saved, "model": model}))
    elif what == "standard input":
        manifest.write_text(json.dumps({**saved, "input": {**saved["input"], "path": "-"}}))
    elif what == "from the hub":
        path = {**saved["input"], "path": "hf:some/rows:train"}
        manifest.write_text(json.dumps({**saved, "input": path}))
    elif what == "pass it again":
        return []
    elif what == "--system differs from":
        return ["--system", "another"]
    return ["--system", SYSTEM]


@pytest.mark.parametrize(
    "what",
    [
        "the input of the run",
        "rows.jsonl has changed since",
        "no manifest",
        "is not a manifest of",
        "the model of the run",
        "have changed since the run",
        "standard input",
        "from the hub",
        "pass it again",
        "--system differs from",
    ],
)
def test_text_that_cannot_be_had_is_one_warning(run: InspectCache, output: Path, what: str) -> None:
    flags = spoil(output, what)
    status, out, err = run(output, "--row", "1", "--show-text", "--json", *flags)
    assert status == 0
    found = json.loads(out)
    assert what in " ".join(found["notes"])
    assert err.count("Warning: no texts are shown") == 1
    assert "Ann" not in out + err
    assert "text" not in found["rows"][0]


def test_what_a_recipe_gave_the_run_is_read_again(run: InspectCache, output: Path) -> None:
    recipe, manifest = output.with_name("mine.yaml"), beside(output, ".run.json")
    recipe.write_text(f"system: {SYSTEM}\n")
    saved = json.loads(manifest.read_text())
    saved["recipe"] = {
        "path": str(recipe),
        "sha256": hashlib.sha256(recipe.read_bytes()).hexdigest(),
    }
    saved["parameters"]["system"]["origin"] = "recipe"
    manifest.write_text(json.dumps(saved))
    asked = (output, "--row", "2", "--show-text", "--json", "--quiet")
    assert SYSTEM in json.loads(run(*asked)[1])["rows"][0]["text"]
    recipe.write_text("system: another\n")
    assert "pass it again" in json.loads(run(*asked)[1])["notes"][0]
    manifest.write_text(json.dumps({**saved, "recipe": ["x"]}))
    assert "is not a manifest of" in json.loads(run(*asked)[1])["notes"][0]
