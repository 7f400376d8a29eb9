"""The forms in which a prompt may be given from Python."""

from typing import Any

import pytest

from pagedrun.paged.llm import LLM
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.prompt_input import PromptInput
from pagedrun.paged.values.request import Completion
from pagedrun.paged.values.sampling_params import SamplingParams

SHORT = SamplingParams(max_tokens=4, ignore_eos=True)
CHAT = [{"role": "user", "content": "Why?"}]


def ids(completion: Completion) -> tuple[int, ...]:
    assert completion.error is None, completion.error
    return completion.request.prompt_token_ids


def error_of(llm: LLM, prompt: Any, params: SamplingParams = SHORT) -> RowError:
    """Return why a prompt has no answer; one beside it has."""
    good, bad = llm.generate(["good", prompt], params)
    assert good.error is None
    assert len(good.outputs[0].token_ids) == 4
    assert bad.error is not None
    assert bad.outputs == ()
    return bad.error


def test_each_form_is_the_same_prompt_as_a_mapping(llm: LLM) -> None:
    encoded = llm.tokenizer.encode_batch(["Why?"], add_special_tokens=True)[0]
    chat = llm.tokenizer.encode_batch([llm.tokenizer.render_chat(CHAT)], False)[0]
    prompts: list[PromptInput] = [
        "Why?",
        {"prompt": "Why?"},
        encoded,
        {"prompt_token_ids": encoded},
        CHAT,
        {"messages": CHAT},
    ]
    text, named_text, tokens, named_tokens, messages, named_messages = llm.generate(prompts, SHORT)
    assert ids(text) == ids(named_text) == ids(messages) == ids(named_messages) == tuple(chat)
    assert ids(tokens) == ids(named_tokens) == tuple(encoded)
    assert text.outputs == named_text.outputs == named_messages.outputs
    text, named_text, tokens, named_tokens, messages, _ = llm.generate(prompts, SHORT, raw=True)
    assert ids(text) == ids(named_text) == ids(tokens) == ids(named_tokens) == tuple(encoded)
    assert ids(messages) == tuple(chat)
    assert text.outputs == named_text.outputs == named_tokens.outputs


def test_what_becomes_a_chat_may_have_variables_of_the_template(llm: LLM) -> None:
    (plain,) = llm.generate({"prompt": "Why?", "chat_template_kwargs": {"x": 1}}, SHORT)
    (chat,) = llm.generate({"messages": CHAT, "chat_template_kwargs": {"x": 1}}, SHORT)
    assert ids(plain) == ids(chat)


@pytest.mark.parametrize(
    "one",
    [
        "Why?",
        [5, 6],
        (5, 6),
        CHAT,
        {"prompt": "Why?"},
        {"prompt_token_ids": [5]},
        {"messages": CHAT},
    ],
    ids=str,
)
def test_a_prompt_may_be_given_alone(llm: LLM, one: Any) -> None:
    (alone,) = llm.generate(one, SHORT)
    _, beside = llm.generate(["another", one], SHORT)
    assert ids(alone) == ids(beside)


def test_continuations_are_scored(llm: LLM) -> None:
    """Texts and their tokens come to the same, behind a text as behind its tokens."""
    texts = [" b", "cd"]
    prompt, *given = llm.tokenizer.encode_batch(["Say:", *texts], add_special_tokens=False)
    prompt = [*llm.tokenizer.encode_batch([""], add_special_tokens=True)[0], *prompt]
    prompts: list[PromptInput] = [
        {"prompt": "Say:", "continuations": texts},
        {"prompt": "Say:", "continuations": given},
        {"prompt_token_ids": prompt, "continuations": given},
        {"prompt_token_ids": prompt, "continuations": tuple(map(tuple, given))},
        {"prompt_token_ids": [*prompt, *given[0]]},
    ]
    params = [*[SHORT] * 4, SamplingParams(max_tokens=0, prompt_logprobs=0)]
    first, *others, scored = llm.generate(prompts, params)
    assert [score.text for score in first.scores] == texts
    assert [score.num_tokens for score in first.scores] == [2, 2]
    assert all(each.scores == first.scores for each in others)
    assert first.outputs == ()
    assert first.text in texts
    assert scored.prompt_logprobs is not None
    known = [each.logprob for each in scored.prompt_logprobs[-2:] if each is not None]
    assert first.scores[0].token_logprobs == pytest.approx(known, abs=1e-5)


def test_white_space_before_token_ids_is_part_of_the_prompt(llm: LLM) -> None:
    """It is only moved to texts, which the tokenizer may join it to."""
    prompts: list[PromptInput] = [
        {"prompt": "Say: ", "continuations": [[5]]},
        {"prompt": "Say: ", "continuations": ["b"]},
        {"prompt": "Say: ", "raw": True},
    ]
    tokens, text, plain = llm.generate(prompts, SHORT)
    assert ids(tokens) == ids(plain)
    assert ids(text) == ids(plain)[:-1]


@pytest.mark.parametrize(
    ("prompt", "code", "param", "says"),
    [
        ({"promt": "a"}, "invalid_param", "promt", "'promt'"),
        ({"prompt": "a", "max_tokens": 5}, "invalid_param", "max_tokens", "'max_tokens'"),
        ({}, "missing_prompt", "prompt", "prompt_token_ids"),
        ({"prompt": None}, "missing_prompt", "prompt", "messages"),
        ({"prompt": "a", "messages": CHAT}, "ambiguous_prompt", "messages", "exclude"),
        ({"prompt": "a", "raw": "yes"}, "invalid_param", "raw", "true or false"),
        ({"messages": CHAT, "raw": True}, "invalid_param", "raw", "messages are a chat"),
        ({"prompt": 5}, "unsupported_content", "prompt", "string"),
        ({"prompt_token_ids": "ab"}, "token_id_out_of_range", "prompt_token_ids", "integers"),
        ({"prompt_token_ids": b"ab"}, "token_id_out_of_range", "prompt_token_ids", "integers"),
        ([1, 2.0], "token_id_out_of_range", "prompt_token_ids", "integers"),
        ([1, True], "token_id_out_of_range", "prompt_token_ids", "integers"),
        ([1, 10**30], "token_id_out_of_range", "prompt_token_ids", "vocabulary"),
        (["a", "b"], "token_id_out_of_range", "prompt_token_ids", "integers"),
        ([], "empty_prompt", "prompt", "no tokens"),
        (5, "unsupported_content", "prompt", "not int"),
        (None, "unsupported_content", "prompt", "not NoneType"),
        (b"ab", "unsupported_content", "prompt", "not bytes"),
        ({"messages": "a"}, "unsupported_content", "messages[0]", "object"),
        ({"messages": []}, "unsupported_content", "messages", "list"),
        ({"messages": 5}, "unsupported_content", "messages", "list"),
        ({"prompt": "a", "continuations": "b"}, "invalid_param", "continuations", "list"),
        ({"prompt": "a", "continuations": [[1], "b"]}, "invalid_param", "continuations", "list"),
        (
            {"prompt": "a", "continuations": [[1, -1]]},
            "token_id_out_of_range",
            "continuations",
            "vocabulary",
        ),
        (
            {"prompt": "a", "raw": True, "chat_template_kwargs": {"x": 1}},
            "invalid_param",
            "chat_template_kwargs",
            "chats",
        ),
        (
            {"messages": CHAT, "chat_template_kwargs": {"tools": []}},
            "forbidden_field",
            "chat_template_kwargs",
            "tools",
        ),
        (
            {"messages": CHAT, "chat_template_kwargs": {"x": {1, 2}}},
            "invalid_param",
            "chat_template_kwargs",
            "set",
        ),
        ("a" * 600, "prompt_too_long", "prompt", "512"),
    ],
)
def test_what_is_no_prompt_fails_alone(
    llm: LLM, prompt: Any, code: str, param: str, says: str
) -> None:
    error = error_of(llm, prompt)
    assert (error.code, error.param) == (code, param)
    assert says in error.message


def test_n_and_continuations_exclude_each_other(llm: LLM) -> None:
    prompt: Any = {"prompt": "a", "continuations": ["b"]}
    (failed,) = llm.generate([prompt], SamplingParams(n=2))
    assert failed.error is not None
    assert failed.error.param == "n"


def test_a_structure_that_no_answer_can_have_fails_its_prompts(llm: LLM) -> None:
    params = [SHORT, SamplingParams(regex="("), SHORT]
    before, failed, after = llm.generate(["a", "b", "c"], params)
    assert failed.error is not None
    assert failed.error.param == "regex"
    assert before.error is None
    assert after.error is None
