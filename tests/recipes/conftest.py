"""The demo's chats and tokenizer, as shipped."""

import json
from typing import Any

import pytest
from transformers import AutoTokenizer

from pagedrun.recipes.demo import demo_model_folder, demo_prompts_path
from tests.recipes.demo_chats import Row


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    lines = demo_prompts_path().read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def shipped_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(demo_model_folder())
