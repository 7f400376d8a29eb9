"""Tokenizer with the special tokens of channels."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pagedrun.paged.text.tokenizer import Tokenizer

MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
TEMPLATE = "{{ '<|start|>user<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>' }}"
START = "<|start|>user<|message|>Who?<|end|><|start|>assistant"
THINK = "<|channel|>analysis<|message|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer: Callable[..., Path]) -> Tokenizer:
    """Bytes, and the special tokens of channels."""
    folder = make_tokenizer()
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    first = 1 + max(token["id"] for token in data["added_tokens"])
    like = data["added_tokens"][0]
    data["added_tokens"] += [
        {**like, "id": first + place, "content": mark} for place, mark in enumerate(MARKS)
    ]
    path.write_text(json.dumps(data))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return Tokenizer.from_folder(folder)


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_batch([text], add_special_tokens=False)[0]
