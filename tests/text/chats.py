"""Chats in many forms, templates in the manners of the families, and texts by Transformers."""

import copy
from datetime import datetime
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from pagedrun.paged.job.prompts.prompt_builder import PromptBuilder
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
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


def expected(
    theirs: PreTrainedTokenizerFast, template: str, chat: Any, variables: Any
) -> str | None:
    """Return what Transformers makes of a chat, None if the template refuses it."""
    try:
        text = theirs.apply_chat_template(
            copy.deepcopy(chat),
            chat_template=template,
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
