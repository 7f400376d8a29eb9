"""Templates in the manners of the families render as Transformers renders them, byte for byte."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from pagedrun.paged.text.prompt import present
from pagedrun.paged.text.tokenizer import Tokenizer
from tests.text.chats import ASKED, CHATS, TEMPLATES, VARIABLES, Rows, expected


@pytest.fixture(scope="module")
def folder(make_tokenizer: Callable[..., Path]) -> Path:
    return make_tokenizer(adds_bos=True)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("variables", VARIABLES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_rows_are_rendered_as_transformers_renders_them(
    name: str, variables: str, folder: Path, theirs: Any
) -> None:
    tokenizer = Tokenizer.from_folder(folder, TEMPLATES[name])
    num_rendered = 0
    for title, chat in CHATS.items():
        before = present()
        wanted = expected(theirs, TEMPLATES[name], chat, VARIABLES[variables])
        times = {before, present()}  # midnight may lie between
        found = [Rows(tokenizer, VARIABLES[variables], time).text(chat) for time in times]
        assert wanted in found, title
        num_rendered += wanted is not None
    assert num_rendered > len(CHATS) / 2


def test_arguments_may_be_the_text_of_an_object(folder: Path) -> None:
    """As OpenAI has them, and as answers to its batch files come back."""
    chat = CHATS["called twice"]
    as_text = copy.deepcopy(chat)
    for call in as_text[2]["tool_calls"]:
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    for name, template in TEMPLATES.items():
        rows = Rows(Tokenizer.from_folder(folder, template), {}, present())
        assert rows.text(as_text) == rows.text(chat), name
    tokenizer = Tokenizer.from_folder(folder, TEMPLATES["switched_thoughts"])
    text = tokenizer.render_chat(as_text)  # from Python too
    assert "<parameter=days>\n[1, 2.5]\n</parameter>" in text
    assert isinstance(as_text[2]["tool_calls"][0]["function"]["arguments"], str)


def test_a_thought_has_every_name_that_templates_read(folder: Path) -> None:
    template = "{{ messages[1].thinking }}{{ messages[1].reasoning_content }}"
    tokenizer = Tokenizer.from_folder(folder, template)
    for key in ("reasoning", "reasoning_content", "thinking"):
        chat = [ASKED, {"role": "assistant", "content": "b", key: "a"}]
        assert Rows(tokenizer, {}, present()).text(chat) == "aa"
        assert tokenizer.render_chat(chat) == "aa"
