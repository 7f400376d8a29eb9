"""Templates in the manners of the families render as Transformers renders them, byte for byte."""

import copy
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pagedrun.paged.job.prompts.prompt_builder import PromptBuilder
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.text.prompt import present
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.sampling_params import SamplingParams

TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))
}
ASKED = {"role": "user", "content": " Is it warm in Łódź?\n"}
THOUGHT = "<think>\nA city.\n</think>\n\nYes: 20 °C <b>"


def called(*names: str, content: str | None = None, **more: Any) -> dict[str, Any]:
    arguments = {"city": "Łódź", "days": [1, 2.5], "raw": True, "deep": {"a": None}}
    calls = [
        {
            "id": f"call{number}xx",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for number, name in enumerate(names)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}


RESULTS = [
    {"role": "tool", "tool_call_id": f"call{number}xx", "name": "weather", "content": '{"t": 20}'}
    for number in range(2)
]
CHATS: dict[str, list[dict[str, Any]]] = {
    "asked": [ASKED],
    "system": [{"role": "system", "content": " Be brief. "}, ASKED],
    "developer": [{"role": "developer", "content": "Be brief."}, ASKED],
    "turns": [
        ASKED,
        {"role": "assistant", "content": "\n\nYes."},
        {"role": "user", "content": "Why"},
    ],
    "thought in the text": [ASKED, {"role": "assistant", "content": THOUGHT}, ASKED],
    "thought beside the text": [
        ASKED,
        {"role": "assistant", "content": "Yes.", "reasoning_content": "A city."},
        ASKED,
    ],
    "called": [ASKED, called("weather"), *RESULTS[:1]],
    "called twice": [
        {"role": "system", "content": "Call."},
        ASKED,
        called("weather", "clock", content="I look."),
        *RESULTS,
    ],
    "called after a thought": [ASKED, called("weather", reasoning_content="Look."), *RESULTS[:1]],
    "called, answered, asked again": [
        ASKED,
        called("weather", content=""),
        *RESULTS[:1],
        {"role": "assistant", "content": "20 °C"},
        ASKED,
    ],
    "overridden": [{"role": "system", "content": "No dates. /system_override"}, ASKED],
    "a result of nothing": [ASKED, RESULTS[0]],
    "two questions": [ASKED, ASKED],
    "an empty one": [ASKED, {"role": "assistant", "content": ""}, {"role": "user", "content": ""}],
}
VARIABLES: dict[str, dict[str, Any]] = {
    "none": {},
    "no thoughts": {"enable_thinking": False},
    "thoughts": {"enable_thinking": True, "reasoning_effort": "high"},
    "texts": {"model_identity": "I.", "custom_instructions": "<all>", "reasoning_effort": "low"},
}


@pytest.fixture(scope="module")
def folder(make_tokenizer: Callable[..., Path]) -> Path:
    return make_tokenizer(adds_bos=True)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def expected(theirs: PreTrainedTokenizerFast, name: str, chat: Any, variables: Any) -> str | None:
    """Return what Transformers makes of a chat, None if the template refuses it."""
    try:
        text = theirs.apply_chat_template(
            copy.deepcopy(chat),
            chat_template=TEMPLATES[name],
            tokenize=False,
            add_generation_prompt=True,
            **variables,
        )
    except Exception:
        return None
    assert isinstance(text, str)
    return text


class Rows:
    """Rows as a job reads them, with variables that the run sets."""

    def __init__(self, tokenizer: Tokenizer, variables: Any, time: datetime) -> None:
        config = PromptConfig(template_kwargs=variables, time=time)
        self._builder = PromptBuilder(config, SamplingParams(), tokenizer)

    def text(self, chat: Any) -> str | None:
        """Return the text of a chat, None if the template refuses it."""
        try:
            return self._builder.build({"messages": copy.deepcopy(chat)}).text
        except RowError as error:
            if error.code != "template_error":
                raise
            return None


@pytest.mark.parametrize("variables", VARIABLES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_rows_are_rendered_as_transformers_renders_them(
    name: str, variables: str, folder: Path, theirs: Any
) -> None:
    tokenizer = Tokenizer.from_folder(folder, TEMPLATES[name])
    num_rendered = 0
    for title, chat in CHATS.items():
        before = present()
        wanted = expected(theirs, name, chat, VARIABLES[variables])
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
