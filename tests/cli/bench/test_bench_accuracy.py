"""`pagedrun bench accuracy` as a user meets it."""

import json
from pathlib import Path

import pytest

from tests.conftest import MakeModel
from tests.support.command import Command
from tests.support.quantized_checkpoints import write
from tests.support.quantized_forms import HELD

TEXT = "Where does the water of the long river go? Down to the sea. " * 3
DTYPES = ("--device", "cpu", "--dtype", "bfloat16", "--against-dtype", "float32")


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Path:
    return make_model("qwen3", "accuracy")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "river.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_tables_and_json(model: Path, text: Path, bench: Command, tmp_path: Path) -> None:
    saved = tmp_path / "kept.md"
    sizes = ["--chunk", 40, "--stride", 30, "--max-chunks", 3, "--prompts", 2, "--output", 4]
    status, out, err = bench(
        "accuracy", "--model", model, "--text", text, *sizes, *DTYPES, "--json", "--save", saved
    )
    assert status == 0, err
    result = json.loads(out)
    assert result["bench"] == "accuracy"
    assert result["text"] == {
        "name": "river.txt",
        "tokens": 180,
        "chunk": 40,
        "stride": 30,
        "chunks": 3,
        "scored_tokens": 39 + 30 + 30,
        "prompts": 2,
        "prompt_tokens": 128,
        "output": 4,
    }
    measured, reference = result["measured"], result["reference"]
    assert (measured["dtype"], reference["dtype"]) == ("bfloat16", "float32")
    assert reference["weight_bytes"] == 2 * measured["weight_bytes"]
    assert measured["name"].endswith("--dtype bfloat16")
    for words in ("perplexity", "identical answers", "near ties", "river.txt, 180 tokens"):
        assert words in err
    assert "| perplexity |" in saved.read_text()


def test_rounded_activations_are_compared_with_exact_ones(
    text: Path, bench: Command, make_model: MakeModel, tmp_path: Path
) -> None:
    dense = make_model("qwen2", "quantized", tie_word_embeddings=False)
    write(dense, tmp_path / "codes", *HELD["awq"][:2])
    flags = ["--model", tmp_path / "codes", "--text", text, "--device", "cpu", "--dtype", "float32"]
    sizes = ["--max-chunks", 1, "--chunk", 40, "--prompts", 1, "--output", 2, "--quiet", "--json"]
    status, out, err = bench("accuracy", *flags, *sizes, "--activations", "int8")
    assert status == 0, err
    result = json.loads(out)
    ways = result["measured"], result["reference"]
    assert [each["name"] for each in ways] == [
        "codes --activations int8",
        "codes --activations exact",
    ]
    assert [each["config"]["activations"] for each in ways] == ["int8", "exact"]
    status, _, err = bench("accuracy", *flags, *sizes, "--activations", "exact")
    assert status == 2
    assert "there is nothing to compare" in err


def test_prompts_in_rows(model: Path, bench: Command, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    chat = {"messages": [{"role": "user", "content": "Where to?"}], "max_tokens": 400}
    rows = [{"prompt": "The river"}, chat, {"prompt_token_ids": [7, 8, 9]}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    args = ["--prompts", 2, "--output", 3, "--quiet", "--json", *DTYPES]
    status, out, err = bench("accuracy", "--model", model, "--text", path, *args)
    assert status == 0, err
    text = json.loads(out)["text"]
    assert (text["chunks"], text["prompts"]) == (3, 2)
    assert text["scored_tokens"] == text["tokens"] - 3
    assert text["prompt_tokens"] == text["tokens"] - 3, "the third has three tokens"


FILES: dict[str, tuple[bytes, str]] = {
    "empty.txt": (b"", "empty.txt is empty"),
    "blank.txt": (b"\xef\xbb\xbf \n\t", "blank.txt is empty"),
    "binary.txt": (b"PK\x03\x04\0\0", "is not a text file: it contains zero bytes"),
    "latin.txt": ("Müßig".encode("latin-1"), "latin.txt is not UTF-8 text"),
    "short.txt": (b"three", "short.txt has 5 tokens, fewer than a chunk of 512"),
    "empty.jsonl": (b"", "empty.jsonl: empty input"),
    "odd.jsonl": (b'{"prompt": "a"}\n{"text": "b"}\n', "--text: line 2: no prompt"),
    "damaged.jsonl": (b'{"prompt": \n', "--text: line 1"),
    "one.jsonl": (b'{"prompt_token_ids": [7]}\n', "it has no token to score"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_used_gets_one_sentence(
    name: str, model: Path, bench: Command, tmp_path: Path
) -> None:
    content, words = FILES[name]
    (tmp_path / name).write_bytes(content)
    args = ["--model", model, "--text", tmp_path / name, "--quiet", *DTYPES]
    status, out, err = bench("accuracy", *args)
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_what_cannot_be_compared_gets_one_sentence(
    model: Path, text: Path, bench: Command, tmp_path: Path
) -> None:
    given = ["--model", model, "--text", text]
    for args, words in (
        (["--model", model], "--text FILE is missing"),
        (["--text", text], "--model NAME is missing"),
        (given, "there is nothing to compare"),
        ([*given, "--against-dtype", "int3"], "--against-dtype"),
        (["--model", model, "--text", tmp_path / "gone.txt", *DTYPES], "cannot be read"),
        (["--model", model, "--text", tmp_path, *DTYPES], "cannot be read"),
        ([*given, "--against", tmp_path / "gone"], "no such folder"),
        (
            [*given, *DTYPES, "--chunk", "40", "--stride", "41"],
            "--stride is 41, more than a chunk of 40",
        ),
    ):
        status, out, err = bench("accuracy", *args)
        assert (status, out) == (2, "")
        assert words in " ".join(err.split())
        assert "Traceback" not in err
