"""Recipe files: what is read from them, and what is refused with file, line and key."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.cli.options.settings import recipe_settings
from pagedrun.paged.values.errors import UsageError
from pagedrun.recipes.recipe import Recipe, bundled_names, bundled_path, find_recipe
from pagedrun.recipes.yaml_file import MAX_BYTES

ReadRecipe = Callable[[str | bytes], Recipe]


@pytest.fixture
def read(tmp_path: Path) -> ReadRecipe:
    """Write a recipe and read it; messages name it judge.yaml."""

    def read_recipe(text: str | bytes) -> Recipe:
        path = tmp_path / "judge.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return Recipe.read(path, recipe_settings(), "judge.yaml")

    return read_recipe


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("temperature: 1", 1.0),
        ("temperature: 1e-3", 0.001),  # a text in YAML 1.1
        ("temperature: .5", 0.5),
        ("max_tokens: 1_000", 1000),
        ("seed: 9223372036854775807", 2**63 - 1),
        ("ignore_eos: yes", True),
        ("prefix_caching: false", False),
        ("stop: no", ["no"]),  # false in YAML 1.1
        ("stop: [no, 1.10, 2026-11-21]", ["no", "1.10", "2026-11-21"]),
        ('stop: ["\\n", "a"]', ["\n", "a"]),
        ("stop_token_ids: [1, 2]", ["1", "2"]),
        ("logit_bias: {1: -100, '2': .5}", '{"1": -100, "2": 0.5}'),
        ("logit_bias: '{\"1\": -100}'", '{"1": -100}'),
        ("kv_cache_memory_bytes: 4GiB", 4 * 2**30),
        ("kv_cache_memory_bytes: 4096", 4096),
        ("preemption_mode: recompute", "recompute"),
        ("prompt_field: 2024", "2024"),
        ("system: |\n  Be kind.\n\n  Be brief.\n", "Be kind.\n\nBe brief."),
        ("model: org/name", "org/name"),
    ],
)
def test_a_value_is_read_as_its_setting_wants_it(read: ReadRecipe, line: str, wanted: Any) -> None:
    (value,) = read(line).values.values()
    assert value == wanted
    assert type(value) is type(wanted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "# judge\n\ntemprature: 0.2\n",
            "temprature in judge.yaml line 3: no such setting; did you mean temperature?",
        ),
        ("max-tokens: 3", "max-tokens in judge.yaml line 1: no such setting; did you mean max_tok"),
        ("descripton: x", "descripton in judge.yaml line 1: no such setting; did you mean descrip"),
        ("zzz: 1", "zzz in judge.yaml line 1: no such setting; see --help of the command"),
        ("max_tokens: many", "max_tokens in judge.yaml line 1 is 'many'; it must be an integer"),
        ("max_tokens: 1.5", "is '1.5'; it must be an integer"),
        ("max_tokens: true", "is 'true'; it must be an integer"),
        ("max_tokens: '64'", "is '64'; it must be an integer, without quotes"),
        (f"max_tokens: {'9' * 5000}", "it must be an integer"),
        ("max_tokens:", "max_tokens in judge.yaml line 1 has no value; it must be an integer"),
        ("max_tokens: [1]", "is a list; it must be an integer"),
        ("top_p: .inf", "is '.inf'; it must be a number"),
        ("ignore_eos: 1", "is '1'; it must be true or false"),
        ("ignore_eos: 'yes'", "true or false, without quotes"),
        ("limit: 0", "limit in judge.yaml line 1 is 0; it must be at least 1"),
        ("device: gpu", "device in judge.yaml line 1 is 'gpu'; choose one of auto, cpu, cuda"),
        ("swap_space_bytes: lots", "is 'lots'; expected bytes, such as 4294967296"),
        ("prompt_template: {{ text }}", "is a mapping; .*; put text with { or \\[ into quotes"),
        ("system: !!python/object/apply:os.system [id]", "is a list; it must be text"),
        ("system: !!python/name:os.system", "has a YAML tag; it must be plain, text"),
        ('system: "\\ud800"', "half of a surrogate pair"),
        (
            "system: '@gone.txt'",
            "system in judge.yaml line 1 names .*gone.txt, which is not a file",
        ),
        (
            "sample: gone.jsonl",
            "sample in judge.yaml line 1 names .*gone.jsonl, which does not exist",
        ),
        ("stop: [[a]]", "stop in judge.yaml line 1 is a list; it must be text, or a list of texts"),
        (
            "logit_bias: {1: 2026-11-21}",
            "contains a value that JSON does not have; put JSON into quotes",
        ),
        ("logit_bias: {[1]: 2}", "contains a value that JSON does not have"),
        ("columns: text", "columns in judge.yaml line 1 is 'text'; it must be a mapping"),
        ("columns:\n  a: x\n  a: y", "columns in judge.yaml names 'a' again in line 3"),
        (
            "output: x.jsonl",
            "output in judge.yaml line 1: cannot be set in a recipe, as it names",
        ),
        ("input_name: x", "input_name in judge.yaml line 1: cannot be set in a recipe"),
        ("n: 1\n\nn: 2", "n in judge.yaml line 3: given twice, first in line 1"),
        ("", "judge.yaml: it must be a mapping of settings"),
        ("- n: 1", "judge.yaml: it must be a mapping of settings"),
        ("just words", "judge.yaml: it must be a mapping of settings"),
        ("n: 1\n---\nn: 2", "judge.yaml line 2: not valid YAML"),
        ("n: 1\n\tx: 2", "judge.yaml line 2: not valid YAML"),
        ("system: 'open\n", "judge.yaml line 2: not valid YAML"),
        ("[1, 2]: 3", "judge.yaml line 1: a key must be the name of a setting"),
        (b"n: 1\nsystem: \xff", "judge.yaml line 2: not UTF-8"),
        ("n: 1\nsystem: a\x07b", "judge.yaml line 2: a character that YAML does not allow"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    read: ReadRecipe, text: str | bytes, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_nothing_small_becomes_large(read: ReadRecipe) -> None:
    laughs = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    with pytest.raises(UsageError, match=r"judge.yaml line 2: \*a is an alias"):
        read(laughs)
    with pytest.raises(UsageError, match=r"judge.yaml line 1: nested more than 4 deep"):
        read("stop: " + "[" * 100_000)
    with pytest.raises(UsageError, match="larger than 256 KiB"):
        read("# " + "x" * MAX_BYTES)


def test_files_and_folders_count_from_the_recipe(
    read: ReadRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "weights").mkdir()
    (tmp_path / "system.txt").write_text("@home is no file, it is text\n")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    recipe = read(
        "model: weights\ntokenizer: ../other\nsystem: '@system.txt'\nsample: rows.jsonl\n"
    )
    assert recipe.values["model"] == str(tmp_path / "weights")
    assert recipe.values["tokenizer"] == str(tmp_path / "../other")
    assert recipe.values["system"] == f"@{tmp_path / 'system.txt'}"
    assert recipe.sample == tmp_path / "rows.jsonl"


def test_what_is_told_of_a_recipe(read: ReadRecipe) -> None:
    recipe = read("\ufeffdescription: |\n  Two\n  lines.\ncolumns:\n  text: what to read\nn: 2\n")
    assert recipe.description == "Two lines."
    assert recipe.columns == {"text": "what to read"}
    assert recipe.values == {"n": 2}
    assert recipe.place("n") == "n (judge.yaml line 6)"


def test_a_name_is_a_bundled_recipe_and_a_path_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge").write_text("n: 1")
    assert find_recipe("judge")[0].suffix == ".yaml"
    assert find_recipe("./judge")[0] == Path("judge")
    with pytest.raises(UsageError, match=r"no bundled recipe; did you mean classify\?"):
        find_recipe("clasify")
    with pytest.raises(UsageError, match=", ".join(bundled_names())):
        find_recipe("xyz.yaml")
    with pytest.raises(UsageError, match="is a folder"):
        find_recipe(str(tmp_path))


@given(data=st.data())
def test_whatever_is_in_the_file_it_is_read_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Noise, and bundled recipes with a piece of noise in them."""
    noise = data.draw(
        st.one_of(
            st.binary(max_size=60),
            st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
            st.text("[]{}&*!|>'\"%@`:,-?# \n\tn~", max_size=60).map(str.encode),
        )
    )
    path = tmp_path_factory.getbasetemp() / "noise.yaml"
    name = data.draw(st.sampled_from([None, *bundled_names()]))
    content = b"" if name is None else bundled_path(name).read_bytes()
    content = content.replace(f"sample: {name}.jsonl\n".encode(), b"")  # it is not beside it
    at = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:at] + noise + content[at:])
    read, told = {}, ""
    try:
        read = dict(Recipe.read(path, recipe_settings()).values)
    except UsageError as error:
        told = str(error)
    assert set(read) <= set(recipe_settings())
    assert len(told) < 1000
