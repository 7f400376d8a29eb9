"""From a row's columns to its prompt and parameters."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest

from pagedrun.paged.job.inputs.row import Columns, Row
from pagedrun.paged.job.prompts.prompt_builder import PromptBuilder
from pagedrun.paged.job.prompts.prompt_config import PromptConfig, PromptTemplate
from pagedrun.paged.text.prompt import Prompt
from pagedrun.paged.values.errors import RowError, UsageError, as_flag
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.prompt_input import ChatMessage
from pagedrun.paged.values.sampling_params import SamplingParams

KWARGS = "chat_template_kwargs"
CHAT: list[JSONValue] = [{"role": "user", "content": "hi"}]
CALL: JSONValue = {"id": "1", "function": {"name": "get", "arguments": "{}"}}
NO_CALLS: list[Any] = [
    *("get", {"name": "get"}, [None], [{}], [{"function": {}}], [{"name": 1}]),
    *([{"name": "get", "arguments": bad}] for bad in ("{", "[1]", "1", [1], 7, "[" * 10**5)),
]
NO_MESSAGES: list[Any] = [
    *({"role": "assistant", "content": "", "tool_calls": calls} for calls in NO_CALLS),
    {"role": "user", "content": "a", "tool_calls": [CALL]},
    {"role": "assistant", "tool_calls": []},
    {"role": "assistant", "content": "a", "tool_call_id": "1"},
    {"role": "assistant", "content": "a", "reasoning": 1},
    {"role": "user", "content": "a", "reasoning": "b"},
    {"role": "tool", "tool_call_id": "1"},
    {"role": "assistant", "content": "a", "prefix": True},
]


class ShowingTokenizer:
    """Renders a chat so that every message can be seen in it, and the variables beside it."""

    chat_template: str | None = "{{ messages }}"

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        raise AssertionError("building a prompt encodes nothing")

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        raise AssertionError("building a prompt decodes nothing")

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        template_kwargs: Mapping[str, JSONValue] | None = None,
        *,
        time: datetime | None = None,
    ) -> str:
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return text + (json.dumps(template_kwargs, sort_keys=True) if template_kwargs else "")


def builder(**config: Any) -> PromptBuilder:
    return PromptBuilder(PromptConfig(**config), SamplingParams(), ShowingTokenizer())


def build(columns: Columns, **config: Any) -> Prompt:
    return builder(**config).build(columns)


def failure(columns: Columns, **config: Any) -> tuple[str, str | None]:
    with pytest.raises(RowError) as caught:
        build(columns, **config)
    assert len(caught.value.message) <= RowError.MAX_MESSAGE
    return caught.value.code, caught.value.param


def test_the_three_kinds_of_prompt() -> None:
    """A text is the user message of a chat, and the same prompt as that."""
    assert build({"prompt_token_ids": [1, 2]}) == Prompt(SamplingParams(), token_ids=(1, 2))
    chat = build({"messages": [{"role": "user", "content": "hi"}]})
    assert chat == Prompt(SamplingParams(), text="<user>hi", add_special_tokens=False)
    assert chat.is_chat
    assert build({"prompt": "hi"}) == chat
    assert build({"q": "hi"}, field="q") == chat
    assert build({"q": "hi"}, template=PromptTemplate("{{ q }}")) == chat


def test_raw_prompts_stand_as_they_are() -> None:
    """By the job's word or the row's own, which goes before it; chats stay chats."""
    raw = Prompt(SamplingParams(), text="hi")
    assert not raw.is_chat
    asked: list[tuple[Columns, dict[str, Any]]] = [
        ({"prompt": "hi"}, {"raw": True}),
        ({"prompt": "hi", "raw": None}, {"raw": True}),
        ({"prompt": "hi", "raw": True}, {}),
        ({"q": "hi", "raw": True}, {"field": "q"}),
        ({"q": "hi"}, {"raw": True, "template": PromptTemplate("{{ q }}")}),
    ]
    for columns, config in asked:
        assert build(columns, **config) == raw
    assert build({"prompt": "hi", "raw": False}, raw=True).is_chat
    assert build({"messages": CHAT}, raw=True).is_chat
    assert "raw" not in builder().carried_columns(
        Row(0, 1, 0, b"", "row-0", {"prompt": "hi", "raw": True})
    )


def test_a_system_prompt_makes_a_chat_of_a_raw_prompt_too() -> None:
    asked: list[tuple[Columns, dict[str, Any]]] = [
        ({"prompt": "hi"}, {"raw": True}),
        ({"prompt": "hi", "raw": True}, {}),
    ]
    for columns, config in asked:
        assert build(columns, system="S", **config).text == "<system>S<user>hi"


def test_what_is_scored_behind_a_prompt_is_scored_behind_the_text_alone() -> None:
    """But behind a chat where there is one: messages, or a system prompt."""
    asked: Columns = {"prompt": "hi", "continuations": ["a"]}
    assert (build(asked).text, build(asked).is_chat) == ("hi", False)
    assert not build({**asked, "raw": False}).is_chat
    assert build(asked, system="S").text == "<system>S<user>hi"
    assert build({"messages": CHAT, "continuations": ["a"]}).is_chat


def test_without_a_chat_template_every_text_is_raw() -> None:
    tokenizer = ShowingTokenizer()
    tokenizer.chat_template = None
    prompts = PromptBuilder(PromptConfig(), SamplingParams(), tokenizer)
    asked: list[Columns] = [{"prompt": "hi"}, {"prompt": "hi", "raw": False}]
    for columns in asked:
        assert prompts.build(columns) == Prompt(SamplingParams(), text="hi")


@pytest.mark.parametrize("value", ["true", "", 1, 0, [True], {"a": 1}])
def test_raw_is_true_or_false(value: JSONValue) -> None:
    assert failure({"prompt": "hi", "raw": value}) == ("invalid_param", "raw")


def test_raw_is_the_prompt_where_that_is_the_name_of_its_column() -> None:
    assert build({"raw": "hi"}, field="raw").text == "<user>hi"
    assert build({"raw": "hi"}, field="raw", raw=True).text == "hi"


def test_what_only_a_chat_can_be_is_not_raw() -> None:
    assert failure({"messages": CHAT, "raw": True}) == ("invalid_param", "raw")
    assert failure({"prompt": ""}) == ("empty_prompt", "prompt")
    assert failure({"prompt": "\ud800"}) == ("invalid_unicode", "prompt")


def test_a_template_that_refuses_a_plain_prompt_has_a_way_out() -> None:
    class Refusing(ShowingTokenizer):
        def render_chat(self, *args: Any, **named: Any) -> str:
            raise RowError("template_error", "the chat template failed", param="messages")

    prompts = PromptBuilder(PromptConfig(), SamplingParams(), Refusing())
    with pytest.raises(RowError) as caught:
        prompts.build({"prompt": "hi"})
    assert (caught.value.code, caught.value.param) == ("template_error", "prompt")
    assert "--raw" in caught.value.shown(as_flag)
    assert prompts.build({"prompt": "hi", "raw": True}).text == "hi"


def test_null_counts_as_absent() -> None:
    assert build({"prompt": "hi", "messages": None, "max_tokens": None}).text == "<user>hi"


@pytest.mark.parametrize(
    ("columns", "code", "param"),
    [
        ({}, "missing_prompt", "prompt"),
        ({"prompt": None}, "missing_prompt", "prompt"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "ambiguous_prompt", "prompt_token_ids"),
        ({"prompt": 1}, "unsupported_content", "prompt"),
        ({"prompt": ["a"]}, "unsupported_content", "prompt"),
        ({"prompt_token_ids": [1.5]}, "token_id_out_of_range", "prompt_token_ids"),
        ({"prompt_token_ids": [True]}, "token_id_out_of_range", "prompt_token_ids"),
        ({"prompt_token_ids": "1 2"}, "token_id_out_of_range", "prompt_token_ids"),
        ({"messages": []}, "empty_prompt", "messages"),
        ({"messages": "hi"}, "unsupported_content", "messages"),
        ({"messages": ["hi"]}, "unsupported_content", "messages"),
        ({"messages": [{"content": "hi"}]}, "unsupported_content", "messages"),
        ({"messages": [{"role": 1, "content": "hi"}]}, "unsupported_content", "messages"),
        ({"messages": [{"role": "user"}]}, "unsupported_content", "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "unsupported_content", "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "unsupported_content", "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "unsupported_content", "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]},
            "unsupported_content",
            "messages",
        ),
        *(
            ({"messages": [*CHAT, message]}, "unsupported_content", "messages")
            for message in NO_MESSAGES
        ),
        ({"prompt": "a", "chat_template": "{{ x }}"}, "forbidden_field", "chat_template"),
        ({"prompt": "a", "chat_template": None}, "forbidden_field", "chat_template"),
        ({"messages": CHAT, KWARGS: {"enable_thinking": False}}, "forbidden_field", KWARGS),
        ({"prompt": "a", KWARGS: None}, "forbidden_field", KWARGS),
        ({"prompt": "a", "sampling_params": {KWARGS: {"x": 1}}}, "forbidden_field", KWARGS),
        ({"prompt": "a", "thinking_budget": 4}, "invalid_param", "thinking_budget"),
        (
            {"prompt": "a", "sampling_params": {"trust_remote_code": True}},
            "forbidden_field",
            "trust_remote_code",
        ),
        ({"prompt": "a", "logprobs": 21}, "invalid_param", "logprobs"),
        ({"prompt": "a", "logprobs": True}, "invalid_param", "logprobs"),
        ({"prompt": "a", "prompt_logprobs": -1}, "invalid_param", "prompt_logprobs"),
        ({"prompt": "a", "top_logprobs": 5}, "invalid_param", "top_logprobs"),
        ({"prompt": "a", "top_logprobs": False}, "invalid_param", "top_logprobs"),
        ({"prompt": "a", "use_beam_search": 0}, "invalid_param", "use_beam_search"),
        ({"prompt": "a", "best_of": True}, "invalid_param", "best_of"),
        ({"prompt": "a", "continuations": []}, "invalid_param", "continuations"),
        ({"prompt": "a", "continuations": "b"}, "invalid_param", "continuations"),
        ({"prompt": "a", "continuations": ["b", ""]}, "invalid_param", "continuations"),
        ({"prompt": "a", "continuations": ["b", 1]}, "invalid_param", "continuations"),
        ({"prompt": "a", "continuations": ["b"] * 1025}, "invalid_param", "continuations"),
        ({"prompt": "a", "continuations": ["b", [1]]}, "invalid_param", "continuations"),
        ({"prompt": "a", "continuations": [[1], []]}, "invalid_param", "continuations"),
        ({"prompt": "a", "continuations": [[1, True]]}, "invalid_param", "continuations"),
        ({"prompt": "a", "continuations": [1]}, "invalid_param", "continuations"),
        ({"prompt": "a", "continuations": ["b"], "n": 2}, "invalid_param", "n"),
        ({"prompt": "a", "continuations": ["b"], "logprobs": 0}, "invalid_param", "logprobs"),
        ({"prompt": "a", "sampling_params": {"max_tokens_": 1}}, "invalid_param", "max_tokens_"),
        ({"prompt": "a", "sampling_params": [1]}, "invalid_param", "sampling_params"),
    ],
)
def test_what_cannot_be_asked(columns: dict[str, Any], code: str, param: str | None) -> None:
    assert failure(columns) == (code, param)


def test_variables_of_the_chat_template() -> None:
    """They are the job's, for chats and for those made of a plain prompt."""
    job: Columns = {"a": 1, "c": [{"deep": None}]}
    ours = builder(template_kwargs=job)
    assert ours.build({"messages": CHAT}).text == '<user>hi{"a": 1, "c": [{"deep": null}]}'
    assert ours.build({"prompt": "hi"}).text == '<user>hi{"a": 1, "c": [{"deep": null}]}'
    assert ours.build({"prompt": "hi", "raw": True}).text == "hi"
    nested = builder(template_kwargs={"a": 1}, system="s").build({"prompt": "hi"})
    assert nested.text == '<system>s<user>hi{"a": 1}'


BAD_VARIABLES: list[Any] = [
    *({name: 1} for name in ("tokenize", "chat_template", "messages", "add_generation_prompt")),
    *({"": 1}, {"a b": 1}, {"__class__": 1}, {"x": float("nan")}, {"x": "y" * 2**16}),
    {f"x{number}": 1 for number in range(65)},
]


@pytest.mark.parametrize("value", BAD_VARIABLES)
def test_variables_that_no_template_is_given_are_refused_for_all_rows(value: Any) -> None:
    with pytest.raises(UsageError, match="chat_template_kwargs"):
        PromptConfig(template_kwargs=value)


def test_text_parts_are_joined() -> None:
    parts: list[JSONValue] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert build({"messages": [{"role": "user", "content": parts}]}).text == "<user>a\nb"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", True),
        ("max_tokens", "16"),
        ("max_tokens", 16.0),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", 10**18),
        ("max_new_tokens", 0),
        ("temperature", -1),
        ("temperature", 10**400),
        ("temperature", 1e9),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 2),
        ("n", 10**9),
        ("seed", -1),
        ("stop", ""),
        ("stop", [""]),
        ("stop", ["x"] * 100_000),
        ("stop", "x" * 10_000),
        ("stop", 3),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["2"]),
        ("ignore_eos", 1),
        ("min_tokens", 1000),
    ],
)
def test_bad_sampling_values_fail_the_row_wherever_they_are(name: str, value: JSONValue) -> None:
    assert failure({"prompt": "a", name: value})[0] == "invalid_param"
    assert failure({"prompt": "a", "sampling_params": {name: value}})[0] == "invalid_param"


def test_sampling_params_win_over_the_top_level_and_both_over_the_flags() -> None:
    defaults = SamplingParams(max_tokens=9, top_k=3, seed=5)
    prompts = PromptBuilder(PromptConfig(), defaults, ShowingTokenizer())
    row: Columns = {
        "prompt": "a",
        "max_tokens": 2,
        "top_k": 7,
        "stop": "x",
        "sampling_params": {"max_tokens": 4, "top_k": None, "temperature": 1},
    }
    assert prompts.build(row).params == SamplingParams(
        max_tokens=4, top_k=7, seed=5, stop=("x",), temperature=1.0
    )


def test_min_and_max_tokens_are_judged_together() -> None:
    row: Columns = {"prompt": "a", "min_tokens": 300, "sampling_params": {"max_tokens": 400}}
    assert build(row).params.min_tokens == 300


def test_the_prompt_field_replaces_all_other_places() -> None:
    columns: Columns = {"question": "why?", "prompt": "x", "messages": 3}
    assert build(columns, field="question").text == "<user>why?"
    assert failure({"prompt": "x"}, field="question") == ("missing_prompt", "question")
    assert failure({"question": [1]}, field="question") == ("unsupported_content", "question")
    assert builder(field="question").carried_columns(Row(0, 1, 0, b"", "row-0", columns)) == {
        "prompt": "x",
        "messages": 3,
    }


def test_the_system_prompt_goes_in_front_unless_the_row_has_one() -> None:
    user: JSONValue = {"role": "user", "content": "hi"}
    assert build({"messages": [user]}, system="S").text == "<system>S<user>hi"
    own: JSONValue = [{"role": "system", "content": "mine"}, user]
    assert build({"messages": own}, system="S").text == "<system>mine<user>hi"
    developer: JSONValue = [{"role": "developer", "content": "mine"}, user]
    assert build({"messages": developer}, system="S").text == "<developer>mine<user>hi"


def test_with_a_system_prompt_a_plain_prompt_becomes_a_chat() -> None:
    wanted = Prompt(SamplingParams(), text="<system>S<user>hi", add_special_tokens=False)
    assert build({"prompt": "hi"}, system="S") == wanted
    assert build({"q": "hi"}, system="S", field="q") == wanted
    assert build({"q": "hi"}, system="S", template=PromptTemplate("{{ q }}")) == wanted
    assert failure({"prompt_token_ids": [1]}, system="S")[0] == "unsupported_content"


def test_a_template_sees_every_column_and_keeps_them() -> None:
    columns: Columns = {"id": 1, "prompt": "p", "n": 2, "q": "x"}
    prompts = builder(template=PromptTemplate("{{ prompt }}{{ n }}{{ q }}"))
    assert prompts.build(columns).text == "<user>p2x"
    assert prompts.carried_columns(Row(0, 1, 0, b"", "row-0", columns)) == {"prompt": "p", "q": "x"}


def test_columns_that_are_not_used_come_back() -> None:
    columns: Columns = {
        "id": "a",
        "custom_id": "kept: it does not name the row",
        "prompt": "x",
        "max_new_tokens": 3,
        "sampling_params": {},
        "expected": "y",
        "nested": {"max_tokens": 1},
    }
    carried = builder().carried_columns(Row(0, 1, 0, b"", "row-0", columns))
    assert list(carried) == ["custom_id", "expected", "nested"]
    assert (
        builder().carried_columns(Row(0, 1, 0, b"", "row-0", {"custom_id": "c", "prompt": "x"}))
        == {}
    )


@pytest.mark.parametrize("kind", ["image", "image_url", "input_image"])
def test_an_image_is_called_one(kind: str) -> None:
    content: list[JSONValue] = [{"type": "text", "text": "What is it?"}, {"type": kind}]
    with pytest.raises(RowError, match="has an image, but pagedrun reads only the text"):
        build({"messages": [{"role": "user", "content": content}]})


def test_names_after_the_first_thousand_are_not_compared() -> None:
    """A row of a million keys."""
    names = ["max_token", *(f"key{number}" for number in range(999)), "temperatur"]
    columns: Columns = dict.fromkeys(names, 1)
    assert builder().near_misses_of(columns, columns) == (("max_token", "max_tokens"),)
