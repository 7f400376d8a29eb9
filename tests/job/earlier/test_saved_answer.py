"""A line of an output is read as a run could have written it, or not at all."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pagedrun.paged.job.earlier_run import RequestDigests, is_whole
from pagedrun.paged.job.output.saved_rows import SavedAnswer
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams


def line(**changes: Any) -> bytes:
    output = {
        "index": 0,
        "text": "ab",
        "token_ids": [1, 2],
        "finish_reason": "stop",
        "stop_reason": None,
        "cumulative_logprob": None,
        "logprobs": None,
    }
    row = {
        "index": 4,
        "id": "x",
        "text": "ab",
        "outputs": [output | changes],
        "usage": {"cached_tokens": 3},
        "input": {},
        "error": None,
    }
    return json.dumps(row).encode() + b"\n"


TOKEN = {"token_id": 1, "text": "a", "logprob": -0.5, "rank": 1, "top": []}


def test_what_a_run_wrote_is_read() -> None:
    saved = SavedAnswer.parse(line(logprobs=[TOKEN], stop_reason="b", reasoning="why"))
    assert saved is not None
    [output] = saved.outputs
    assert (output.text, output.token_ids, output.stop_reason) == ("ab", (1, 2), "b")
    assert (output.reasoning, output.cumulative_logprob) == ("why", -0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": [1, -2]},
        {"token_ids": [1, 2**40]},
        {"token_ids": [True]},
        {"token_ids": "12"},
        {"text": None},
        {"finish_reason": "gone"},
        {"finish_reason": ["stop"]},
        {"index": "0"},
        {"stop_reason": {"a": 1}},
        {"logprobs": [TOKEN | {"logprob": float("nan")}]},
        {"logprobs": [TOKEN | {"logprob": "1"}]},
        {"logprobs": [TOKEN | {"top": [5]}]},
        {"logprobs": {"tokens": []}},
        {"beam_score": float("inf")},
    ],
)
def test_what_no_run_writes_is_not(changes: dict[str, Any]) -> None:
    assert SavedAnswer.parse(line(**changes)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'{"error": null}',
        b'{"error": null, "outputs": [], "usage": []}',
        b"[" * 100_000,
        b'{"error": null, "outputs": [], "usage": {"cached_tokens": 1' + b"0" * 5000 + b"}}",
        b'{"error": {"code": "x"}, "outputs": [], "usage": {"cached_tokens": 1}}',
    ],
)
def test_what_is_no_answer_is_not(data: bytes) -> None:
    assert SavedAnswer.parse(data) is None


def asked(**params: Any) -> Request:
    return Request(7, (5, 6, 7), SamplingParams(**params))


@pytest.mark.parametrize(
    ("changes", "params", "is_copied"),
    [
        ({}, {"max_tokens": 2}, True),
        ({}, {"max_tokens": 9}, True),
        ({}, {"max_tokens": 1}, False),
        ({"finish_reason": "length"}, {"max_tokens": 2}, True),
        ({"finish_reason": "length"}, {"max_tokens": 3}, False),
        ({"finish_reason": "length"}, {"max_tokens": 1}, False),
        ({"finish_reason": "error"}, {}, False),
        ({"index": 1}, {}, False),
        ({}, {"n": 2}, False),
        ({}, {"logprobs": 1}, False),
        ({"logprobs": []}, {}, False),
        ({}, {"prompt_logprobs": 1}, False),
        ({"finish_reason": "length"}, {"beam_width": 2, "max_tokens": 8}, True),
    ],
)
def test_an_answer_is_copied_where_a_run_would_give_just_this_one(
    changes: dict[str, Any], params: dict[str, Any], is_copied: bool
) -> None:
    saved = SavedAnswer.parse(line(**changes))
    assert saved is not None
    assert is_whole(saved, asked(**params)) is is_copied


def test_a_question_is_what_decides_the_bytes() -> None:
    digest = RequestDigests(None).digest
    greedy, sampled = asked(), asked(temperature=0.5)
    same = [
        (greedy, replace(greedy, index=8)),
        (greedy, asked(max_tokens=9)),
        (greedy, asked(seed=3, top_p=0.5, top_k=4, min_p=0.1)),
        (sampled, asked(temperature=0.5, max_tokens=9)),
    ]
    for one, other in same:
        assert digest(one, 0) == digest(other, 0)
    different = [
        *(greedy, sampled, replace(sampled, index=8), asked(temperature=0.5, seed=3)),
        *(asked(n=2), asked(stop=["a"]), asked(min_tokens=2), asked(skip_special_tokens=False)),
        *(asked(beam_width=2), asked(beam_width=2, max_tokens=9), asked(logprobs=1)),
        *(replace(greedy, prompt_token_ids=(5, 6)), replace(greedy, bad_words_ids=((1,),))),
    ]
    assert len({digest(each, 0) for each in different}) == len(different)
    assert digest(greedy, 127) == digest(greedy, 0) != digest(greedy, 128)


def test_a_template_that_tells_thoughts_otherwise_asks_another_question() -> None:
    templates = [None, "{{ messages }}", "<think></think>", "<|start|><|channel|><|message|>"]
    found = [RequestDigests(template).digest(asked(), 0) for template in templates]
    assert found[0] == found[1]
    assert len(set(found)) == 3
