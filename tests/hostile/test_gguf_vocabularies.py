"""A vocabulary of a GGUF file that contradicts itself is refused by file and field."""

import random
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import ModelError
from tests.support.gguf_vocabularies import vocabulary, write_vocabulary


def refusal(path: Path, fields: dict[str, Any]) -> str:
    with pytest.raises(ModelError) as caught:
        Tokenizer.from_folder(write_vocabulary(path, fields))
    return str(caught.value)


def refusal_if_any(path: Path) -> str:
    try:
        Tokenizer.from_folder(path).encode_batch(["Hello 3 world\n\n é"], True)
    except ModelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("base", "changes", "field"),
    [
        ("gpt-2", {"model": "rwkv"}, "model is 'rwkv'"),
        ("gpt-2", {"model": "plamo2"}, "model is 'plamo2'"),
        ("gpt-2", {"model": "no_vocab"}, "model is 'no_vocab'"),
        ("gpt-2", {"model": "a\nb" * 99}, "model"),
        ("gpt-2", {"model": None}, "model"),
        ("gpt-2", {"pre": None}, "pre is missing"),
        ("gpt-2", {"pre": "my-own-pre"}, "pre is 'my-own-pre'"),
        ("gpt-2", {"pre": 7}, "pre"),
        ("gpt-2", {"tokens": None}, "tokens is missing"),
        ("gpt-2", {"tokens": [1, 2, 3]}, "tokens is not a list of texts"),
        ("gpt-2", {"tokens": "abc"}, "tokens is not a list of texts"),
        ("gpt-2", {"token_type": [1, 1]}, "token_type has 2 numbers"),
        ("gpt-2", {"token_type": 3}, "token_type is not a list"),
        ("gpt-2", {"merges": None}, "merges is missing"),
        ("gpt-2", {"merges": ["nothere nor_here"]}, "merges has 'nothere nor_here'"),
        ("gpt-2", {"merges": ["ab"]}, "merges has 'ab'"),
        ("gpt-2", {"merges": [""]}, "merges has ''"),
        ("gpt-2", {"bos_token_id": 2**31}, "bos_token_id"),
        ("gpt-2", {"eos_token_id": "a"}, "eos_token_id"),
        ("gpt-2", {"add_bos_token": True, "bos_token_id": None}, "bos_token_id is missing"),
        ("gpt-2", {"add_bos_token": 1}, "add_bos_token"),
        ("gpt-2", {"add_sep_token": True}, "seperator_token_id is missing"),
        ("llama-spm", {"scores": None}, "scores is missing"),
        ("llama-spm", {"scores": [0.0]}, "scores has 1 numbers"),
        ("llama-spm", {"scores": ["a"]}, "scores is not a list of numbers"),
        ("llama-spm", {"model": "t5", "precompiled_charsmap": [1, 0]}, "charsmap"),
        ("llama-spm", {"model": "t5", "precompiled_charsmap": ["a"]}, "charsmap"),
        ("llama-spm", {"tokenizer.chat_template": 5}, "chat_template"),
    ],
)
def test_a_field_that_cannot_be_is_refused(
    base: str, changes: dict[str, Any], field: str, tmp_path: Path
) -> None:
    fields = vocabulary(base)["fields"] | changes
    path = tmp_path / "model.gguf"
    sentence = refusal(path, {key: each for key, each in fields.items() if each is not None})
    assert field in sentence
    assert str(path) in sentence
    assert "\n" not in sentence
    assert len(sentence) < 500 + len(str(path))


def test_scores_that_are_no_numbers_and_tokens_twice(tmp_path: Path) -> None:
    path, fields = tmp_path / "model.gguf", vocabulary("llama-spm")["fields"]
    scores = [float("nan"), *fields["scores"][1:]]
    assert "scores has a number that is not finite" in refusal(path, fields | {"scores": scores})
    tokens = ["a", *fields["tokens"][1:-1], "a"]
    assert "tokens has the same token" in refusal(path, fields | {"tokens": tokens})
    kinds = [99, *fields["token_type"][1:]]
    assert "token_type has a number" in refusal(path, fields | {"token_type": kinds})


@pytest.mark.parametrize("base", ["gpt-2", "llama-spm", "gemma-4", "bert-bge"])
def test_shuffled_vocabularies_end_in_a_sentence_or_a_tokenizer(base: str, tmp_path: Path) -> None:
    fields, path = vocabulary(base)["fields"], tmp_path / "model.gguf"
    lists = [key for key, each in fields.items() if isinstance(each, list)]
    for seed in range(25):
        choose, changed = random.Random(seed), dict(fields)
        key = choose.choice(lists)
        values = list(fields[key])
        for _ in range(choose.randint(1, 20)):
            at, other = choose.randrange(len(values)), choose.randrange(len(values))
            if choose.random() < 0.5:
                values[at], values[other] = values[other], values[at]
            elif isinstance(values[at], str):
                values[at] = choose.choice(["", "▁", "\0", "é" * 500, values[at][:-1]])
            else:
                values[at] = type(values[at])(choose.choice([0, 1, 3, 4, 6]))
        sentence = refusal_if_any(write_vocabulary(path, changed | {key: values}))
        assert sentence == "" or str(path) in sentence
        assert "\n" not in sentence
