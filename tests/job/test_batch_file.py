"""OpenAI batch files: asked as their bodies say, answered in the format of their output."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.files.atomic import json_fields
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.row import Columns, Row
from pagedrun.paged.job.job import JobResult, run_job
from pagedrun.paged.job.output.output_row import BROKEN, BatchRow, ErrorBody, answered_row
from pagedrun.paged.job.prompts.requests import JobRow, OpenAIRequest
from pagedrun.paged.text.prompt_encoder import EncodedPrompt
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.jsonl import read_jsonl, write_jsonl

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def line(custom_id: Any, url: Any, body: Any, method: Any = "POST") -> dict[str, Any]:
    return {"custom_id": custom_id, "method": method, "url": url, "body": body}


def asked(url: Any, body: Any, method: Any = "POST") -> Columns:
    call = OpenAIRequest.of(line("a", url, body, method))
    assert call is not None
    return call.columns()


def test_only_rows_with_all_four_columns_are_calls() -> None:
    row = line("a", CHAT, {})
    assert OpenAIRequest.of({**row, "more": 1}) is not None
    for name in row:
        assert OpenAIRequest.of({key: value for key, value in row.items() if key != name}) is None


def test_a_body_becomes_columns() -> None:
    sampling = {"max_completion_tokens": 5, "temperature": 0.5, "n": 2, "stop": "x", "seed": 3}
    sampling |= {"presence_penalty": 0, "frequency_penalty": 0.5, "logit_bias": {"3": -100}}
    sampling |= {"response_format": {"type": "text"}}
    told = {"model": "m", "user": "u", "metadata": {"a": 1}, "service_tier": "flex"}
    neutral = {"stream": False, "tools": [], "top_p": None, "use_beam_search": False}
    body = {"messages": MESSAGES, **sampling, **told, **neutral}
    assert asked(CHAT, body) == {"messages": MESSAGES, **sampling}
    plain = {"prompt": "p", "raw": True}
    assert asked(COMPLETIONS, {"prompt": "p", "best_of": 1, "echo": False}) == plain
    ids = {"prompt_token_ids": [1, 2], "raw": True}
    assert asked(COMPLETIONS, {"prompt": [1, 2]}) == ids


@pytest.mark.parametrize(
    ("url", "body", "code"),
    [
        ("/v1/embeddings", {}, "invalid_url"),
        (["/v1/completions"], {}, "invalid_url"),
        (None, {}, "invalid_url"),
        (CHAT, [], "invalid_body"),
        (CHAT, None, "invalid_body"),
        (CHAT, {"messages": MESSAGES, "stream": True}, "invalid_param"),
        (CHAT, {"messages": MESSAGES, "prompt": "x"}, "invalid_param"),
        (CHAT, {"messages": MESSAGES, "reasoning_effort": "high"}, "invalid_param"),
        (CHAT, {"messages": MESSAGES, "sampling_params": {}}, "invalid_param"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "unsupported_content"),
        (COMPLETIONS, {"prompt": [[1], [2]]}, "unsupported_content"),
        (COMPLETIONS, {"prompt": "a", "best_of": 2}, "invalid_param"),
        (COMPLETIONS, {"prompt": "a", "top_logprobs": 2}, "invalid_param"),
        (CHAT, {"messages": MESSAGES, "logprobs": 3}, "invalid_param"),
        (CHAT, {"messages": MESSAGES, "top_logprobs": 3}, "invalid_param"),
        (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, "invalid_param"),
        (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": True}, "invalid_param"),
    ],
)
def test_what_cannot_be_asked_is_an_error(url: Any, body: Any, code: str) -> None:
    with pytest.raises(RowError) as caught:
        asked(url, body)
    assert caught.value.code == code


def test_the_method_is_post() -> None:
    with pytest.raises(RowError, match='must be "POST"'):
        asked(CHAT, {"messages": MESSAGES}, method="GET")


Run = Callable[[list[dict[str, Any]]], tuple[JobResult, list[dict[str, Any]]]]


@pytest.fixture
def answer(make_model: MakeModel, tmp_path: Path) -> Run:
    folder = make_model("qwen3", "batch_file")

    def run(rows: list[dict[str, Any]]) -> tuple[JobResult, list[dict[str, Any]]]:
        source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        write_jsonl(source, rows)
        engine = EngineConfig(model=folder)
        result = run_job(
            JobConfig(
                input=str(source), output=str(output), engine=engine, ordered=True, overwrite=True
            )
        )
        return result, read_jsonl(output)

    return run


def test_answers_are_those_of_plain_rows_in_the_other_format(answer: Run) -> None:
    body = {"model": "m", "prompt": [5, 6, 7], "max_tokens": 4, "n": 2, "temperature": 1.0}
    plain = {"prompt_token_ids": [5, 6, 7], "max_tokens": 4, "n": 2, "temperature": 1.0}
    _, (expected,) = answer([plain])
    result, (row, other) = answer([line("call-1", COMPLETIONS, body), plain])
    assert result.num_failed == 0
    assert list(row) == ["index", "id", "custom_id", "response", "error"]
    assert (row["custom_id"], row["error"]) == ("call-1", None)
    response = row["response"]
    assert response["status_code"] == 200
    assert (response["body"]["object"], response["body"]["model"]) == ("text_completion", "m")
    assert response["body"]["choices"] == [
        {
            "index": output["index"],
            "text": output["text"],
            "logprobs": None,
            "finish_reason": output["finish_reason"],
        }
        for output in expected["outputs"]
    ]
    usage = response["body"]["usage"]
    assert usage["prompt_tokens"] == 3
    assert usage["completion_tokens"] == expected["usage"]["completion_tokens"]
    assert usage["total_tokens"] == 3 + usage["completion_tokens"]
    assert len(other["outputs"]) == 2  # rows of both kinds may be in one file


def test_logprobs_are_asked_for_and_answered_as_openai_does(answer: Run) -> None:
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    body = {"max_tokens": 3, "logprobs": 2, "prompt_logprobs": 0}
    chat = {"messages": messages, "max_tokens": 3}
    _, (text, two, none, plain) = answer(
        [
            line("a", COMPLETIONS, {**body, "prompt": [5, 6, 7]}),
            line("b", CHAT, {**chat, "logprobs": True, "top_logprobs": 2}),
            line("c", COMPLETIONS, {"prompt": [5, 6, 7], "max_tokens": 3, "logprobs": 0}),
            {**body, "prompt_token_ids": [5, 6, 7]},
        ]
    )
    tokens = plain["outputs"][0]["logprobs"]
    found = text["response"]["body"]["choices"][0]["logprobs"]
    assert list(found) == ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
    texts = [token["text"] for token in tokens]
    assert found["tokens"] == texts
    assert found["token_logprobs"] == [token["logprob"] for token in tokens]
    assert [set(each) for each in found["top_logprobs"]] == [
        {top["text"] for top in token["top"]} for token in tokens
    ]
    assert found["text_offset"] == [len("".join(texts[:place])) for place in range(3)]
    assert text["response"]["body"]["prompt_logprobs"] == plain["prompt_logprobs"]
    assert none["response"]["body"]["choices"][0]["logprobs"]["top_logprobs"] is None
    logprobs = two["response"]["body"]["choices"][0]["logprobs"]
    assert list(logprobs) == ["content", "refusal"]
    assert logprobs["refusal"] is None
    for each in logprobs["content"]:
        assert list(each) == ["token", "logprob", "bytes", "top_logprobs"]
        assert bytes(each["bytes"]).decode() == each["token"]
        # Greedy: what was chosen is the likeliest.
        assert each["top_logprobs"][0] == {k: each[k] for k in ("token", "logprob", "bytes")}
        assert len(each["top_logprobs"]) == 2


def test_beams_have_their_scores(answer: Run) -> None:
    beams = {"beam_width": 3, "n": 2, "max_tokens": 4}
    _, (text, chat, plain, other) = answer(
        [
            line("a", COMPLETIONS, {"prompt": [5, 6, 7], **beams}),
            line("b", CHAT, {"messages": MESSAGES, **beams}),
            {"prompt_token_ids": [5, 6, 7], **beams},
            {"messages": MESSAGES, **beams},
        ]
    )
    for call, row in ((text, plain), (chat, other)):
        scores = [choice["beam_score"] for choice in call["response"]["body"]["choices"]]
        assert scores == [output["beam_score"] for output in row["outputs"]]
        assert scores == sorted(scores, reverse=True)


def test_refused_calls_have_a_status_and_an_error(answer: Run) -> None:
    body = {"prompt": [5], "max_tokens": 1}
    bad = [
        line("a", "/v1/embeddings", body),
        line("b", COMPLETIONS, {**body, "logprobs": 21}),
        line("c", COMPLETIONS, {**body, "max_tokens": 0}),
        line("d", CHAT, {"messages": "hi"}),
        line("e", COMPLETIONS, {**body, "chat_template": "x"}),
        line(True, COMPLETIONS, body),
    ]
    result, rows = answer([*bad, line("good", COMPLETIONS, body)])
    assert result.num_failed == len(bad)
    assert [row["response"]["status_code"] for row in rows] == [400] * len(bad) + [200]
    errors = [row["response"]["body"]["error"] for row in rows[:-1]]
    assert [error["code"] for error in errors] == [
        "invalid_url",
        "invalid_param",
        "invalid_param",
        "unsupported_content",
        "forbidden_field",
        "invalid_id",
    ]
    assert [error["param"] for error in errors[1:3]] == ["logprobs", "max_tokens"]
    assert [error["line"] for error in errors] == [1, 2, 3, 4, 5, 6]
    assert {error["type"] for error in errors} == {"invalid_request_error"}


def test_a_chat_is_answered_with_a_message() -> None:
    call = OpenAIRequest.of(line("a", CHAT, {"messages": MESSAGES, "model": "m"}))
    request = Request(4, (1,), SamplingParams())
    row = JobRow(Row(4, 5, 0, b"", "a"), EncodedPrompt(request, 1), {}, call=call)
    output = SampleOutput(0, "hello", (7, 8), FinishReason.LENGTH, None)
    answered = answered_row(row, Completion(request, (output,), num_cached_tokens=1))
    assert json.loads(json.dumps(answered, default=json_fields)) == {
        "index": 4,
        "id": "batch_req_4",
        "custom_id": "a",
        "response": {
            "status_code": 200,
            "request_id": "req_4",
            "body": {
                "id": "chatcmpl-4",
                "object": "chat.completion",
                "created": 0,
                "model": "m",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "hello"},
                        "logprobs": None,
                        "finish_reason": "length",
                    }
                ],
                "usage": {
                    "prompt_tokens": 1,
                    "completion_tokens": 2,
                    "total_tokens": 3,
                    "prompt_tokens_details": {"cached_tokens": 1},
                    "truncated_tokens": 0,
                    "max_tokens_clamped": False,
                },
            },
        },
        "error": None,
    }


def test_what_the_engine_cannot_do_is_not_the_callers_fault() -> None:
    call = OpenAIRequest.of(line("a", CHAT, {"messages": MESSAGES}))
    request = Request(0, (1,), SamplingParams())
    row = JobRow(Row(0, 1, 0, b"", "a"), EncodedPrompt(request, 1), {}, call=call)
    failed = answered_row(row, Completion(request, (), error=RowError("nan_logits", "no number")))
    assert isinstance(failed, BatchRow)
    assert failed.response.status_code == BROKEN == 500
    assert isinstance(failed.response.body, ErrorBody)
    assert failed.response.body.error.type == "server_error"
