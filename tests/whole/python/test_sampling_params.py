"""Every field of SamplingParams does from Python what it is for; chats and their variables."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pagedrun.paged.llm import LLM
from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.request import Completion, FinishReason, SampleOutput
from pagedrun.paged.values.sampling_params import FIELD_NAMES, EarlyStopping, SamplingParams
from tests.conftest import MakeModel

A, IM_START, IM_END = 64, 257, 258  # ids of the tokenizer: a letter, and special tokens
LETTERS = list(range(A, A + 26))
LIKELIEST: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "allowed_token_ids": LETTERS}
DRAWN: dict[str, Any] = {**LIKELIEST, "temperature": 1.5}
BEAMS: dict[str, Any] = {"max_tokens": 6, "beam_width": 3}
ALL_A: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "logit_bias": {A: 100.0}}
ENDS: dict[str, Any] = {"max_tokens": 6, "logit_bias": {IM_END: 100.0}}


@dataclass(frozen=True)
class Plain:
    """The answers that rows with a field are compared with: the likeliest letters, drawn letters,
    and beams."""

    likeliest: SampleOutput
    drawn: SampleOutput
    beams: SampleOutput


Check = Callable[[Completion, SampleOutput, Plain], bool]
"""Whether a completion, whose first output is given too, is as the field asks."""


def fields(plain: Plain) -> dict[str, tuple[dict[str, Any], Check]]:
    """Return for each field a row's parameters, and what shows that the field was followed."""
    likeliest = plain.likeliest.token_ids
    third = likeliest[2]
    stop = plain.likeliest.text[2:4]
    return {
        "n": ({**DRAWN, "n": 3}, lambda c, o, p: len({each.text for each in c.outputs}) == 3),
        "temperature": (DRAWN, lambda c, o, p: o.token_ids != likeliest),
        "top_p": ({**DRAWN, "top_p": 1e-6}, lambda c, o, p: o.token_ids == likeliest),
        "top_k": ({**DRAWN, "top_k": 1}, lambda c, o, p: o.token_ids == likeliest),
        "min_p": ({**DRAWN, "min_p": 1.0}, lambda c, o, p: o.token_ids == likeliest),
        "seed": ({**DRAWN, "seed": 7}, lambda c, o, p: o.token_ids != p.drawn.token_ids),
        "max_tokens": (
            {"max_tokens": 5, "ignore_eos": True},
            lambda c, o, p: len(o.token_ids) == 5,
        ),
        "min_tokens": ({**ENDS, "min_tokens": 4}, lambda c, o, p: len(o.token_ids) == 5),
        "stop": ({**LIKELIEST, "stop": stop}, lambda c, o, p: o.stop_reason == stop),
        "stop_token_ids": (
            {**LIKELIEST, "stop_token_ids": [third]},
            lambda c, o, p: o.stop_reason == third,
        ),
        "ignore_eos": ({**ENDS, "ignore_eos": True}, lambda c, o, p: len(o.token_ids) == 6),
        "repetition_penalty": (
            {**LIKELIEST, "repetition_penalty": 5.0},
            lambda c, o, p: len({*o.token_ids}) > len({*likeliest}),
        ),
        "presence_penalty": (
            {**LIKELIEST, "presence_penalty": 2.0},
            lambda c, o, p: o.token_ids != likeliest,
        ),
        "frequency_penalty": (
            {**LIKELIEST, "frequency_penalty": 2.0},
            lambda c, o, p: o.token_ids != likeliest,
        ),
        "logit_bias": (ALL_A, lambda c, o, p: {*o.token_ids} == {A}),
        "allowed_token_ids": (
            {**LIKELIEST, "allowed_token_ids": [70, 71]},
            lambda c, o, p: {*o.token_ids} <= {70, 71},
        ),
        "bad_words": ({**LIKELIEST, "bad_words": [stop]}, lambda c, o, p: stop not in o.text),
        "logprobs": (
            {**LIKELIEST, "logprobs": 2},
            lambda c, o, p: [len(each.top) for each in o.logprobs or ()] == [2] * 12,
        ),
        "prompt_logprobs": (
            {"prompt_logprobs": 1, "max_tokens": 0},
            lambda c, o, p: (
                len(c.prompt_logprobs or ()) == len(c.request.prompt_token_ids)
                and o.token_ids == ()
            ),
        ),
        "json_schema": (
            {"json_schema": {"enum": ["ab", "cd"]}},
            lambda c, o, p: o.text in ('"ab"', '"cd"'),
        ),
        "json_object": ({"json_object": True}, lambda c, o, p: o.text.lstrip().startswith("{")),
        "regex": ({"regex": "[xy]{5}"}, lambda c, o, p: len(o.text) == 5 and {*o.text} <= {*"xy"}),
        "choice": ({"choice": ["yes", "no"]}, lambda c, o, p: o.text in ("yes", "no")),
        "grammar": ({"grammar": 'start: "x" "y"'}, lambda c, o, p: o.text == "xy"),
        "skip_special_tokens": (
            {
                "max_tokens": 1,
                "allowed_token_ids": [IM_START],
                "skip_special_tokens": False,
            },
            lambda c, o, p: o.text == "<|im_start|>",
        ),
        "include_stop_str_in_output": (
            {**LIKELIEST, "stop": stop, "include_stop_str_in_output": True},
            lambda c, o, p: o.text.endswith(stop),
        ),
        "stop_on_repetition": (
            {**ALL_A, "stop_on_repetition": 3},
            lambda c, o, p: (len(o.token_ids), o.stop_reason) == (3, "repetition"),
        ),
        "reasoning_tags": (
            {**ALL_A, "reasoning_tags": "a,b"},
            lambda c, o, p: (o.reasoning, o.text) == ("a" * (len(o.token_ids) - 1), ""),
        ),
        "thinking_budget": (
            {**ALL_A, "reasoning_tags": "a,b", "thinking_budget": 3},
            lambda c, o, p: o.reasoning == "aaa" and o.text == "a" * (len(o.token_ids) - 5),
        ),
        "vote": (
            {**LIKELIEST, "n": 5, "vote": "(.)"},
            lambda c, o, p: c.vote is not None and c.vote.drawn == len(c.outputs) == 3,
        ),
        "beam_width": (BEAMS, lambda c, o, p: o.beam_score is not None),
        "length_penalty": (
            {**BEAMS, "length_penalty": 2.0},
            lambda c, o, p: o.beam_score != p.beams.beam_score,
        ),
        "early_stopping": (
            {**BEAMS, "early_stopping": True},
            lambda c, o, p: c.request.params.early_stopping is EarlyStopping.TRUE,
        ),
    }


def test_every_field(llm: LLM) -> None:
    prompt = "Once upon a time"
    alone = [SamplingParams(**each) for each in (LIKELIEST, DRAWN, BEAMS)]
    plain = Plain(*(each.outputs[0] for each in llm.generate([prompt] * 3, alone)))
    rows = fields(plain)
    assert rows.keys() == FIELD_NAMES
    params = [SamplingParams(**given) for given, _ in rows.values()]
    completions = llm.generate([prompt] * len(rows), params)
    ignored = {
        name: (completion.error, completion.outputs)
        for (name, (_, is_followed)), completion in zip(rows.items(), completions, strict=True)
        if completion.error or not is_followed(completion, completion.outputs[0], plain)
    }
    assert ignored == {}


CHATS = [
    [{"role": "user", "content": "Why?"}],
    [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "And now?"},
    ],
]
SHORT = SamplingParams(max_tokens=3, ignore_eos=True)


def test_chats_are_prompts_of_messages(llm: LLM) -> None:
    """One or several, from any iterable; what begins the answer is added."""
    expected = llm.generate([{"messages": chat} for chat in CHATS], SHORT)
    found = llm.chat(iter(CHATS), iter([SHORT, SHORT]))
    assert [each.outputs for each in found] == [each.outputs for each in expected]
    (alone,) = llm.chat(CHATS[0], SHORT)
    assert alone.outputs == expected[0].outputs
    ids = alone.request.prompt_token_ids
    assert llm.tokenizer.decode(list(ids), False).endswith("<|im_start|>assistant\n")
    assert alone.outputs[0].finish_reason is FinishReason.LENGTH
    failed, good = llm.chat([[], CHATS[0]], SHORT)
    assert failed.error is not None
    assert good.outputs == alone.outputs


def test_the_template_has_its_variables(make_model: MakeModel) -> None:
    template = "{{ messages[0].content }}{{ mood }}"
    with_mood = LLM(make_model("llama", "python"), dtype="float32", chat_template=template)
    (found,) = with_mood.chat(CHATS[0], SHORT, chat_template_kwargs={"mood": " loudly"})
    assert with_mood.tokenizer.decode(list(found.request.prompt_token_ids)) == "Why? loudly"


@pytest.mark.parametrize("kwargs", [{"add_generation_prompt": False}, {"x": {1, 2}}])
def test_variables_that_cannot_be_set_are_refused_at_once(llm: LLM, kwargs: Any) -> None:
    with pytest.raises(RowError, match="chat_template_kwargs"):
        llm.chat(CHATS, SHORT, chat_template_kwargs=kwargs)


@pytest.mark.parametrize("given", ["Why?", CHATS[0][0], 3], ids=str)
def test_what_is_no_conversation_is_refused_at_once(llm: LLM, given: Any) -> None:
    with pytest.raises(UsageError, match="list of messages") as caught:
        llm.chat(given, SHORT)
    assert caught.value.field == "conversations"


@pytest.mark.parametrize("params", [{"max_tokens": 3}, "greedy", 3, [{"max_tokens": 3}], []])
def test_what_are_no_params_is_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(UsageError, match="SamplingParams"):
        llm.generate(["a"], params)


@pytest.mark.parametrize("prompts", [None, 3])
def test_what_are_no_prompts_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(UsageError) as caught:
        llm.generate(prompts, SHORT)
    assert caught.value.field == "prompts"
