"""The answer to a `BatchCall`, in the format of OpenAI's batch output.

It has one key more, `index`, as every output row has. `created` is 0 and the ids are made of the
index, so that the same input gives the same bytes.
"""

from typing import Any

from pagedrun.paged.job.prompts.batch_call import BatchCall
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.option_names import as_flag
from pagedrun.paged.values.request import Completion, SampleOutput

REFUSED, BROKEN = 400, 500  # the request's fault, and the engine's


def answered_call(
    call: BatchCall, index: int, num_prompt_tokens: int, completion: Completion
) -> dict[str, Any]:
    """Return the output row for a call that has answers."""
    num_generated = sum(len(output.token_ids) for output in completion.outputs)
    body = {
        "id": f"{'chatcmpl' if call.is_chat else 'cmpl'}-{index}",
        "object": "chat.completion" if call.is_chat else "text_completion",
        "created": 0,
        "model": call.model,
        "choices": [_choice(call, output) for output in completion.outputs],
        "usage": {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_generated,
            "total_tokens": num_prompt_tokens + num_generated,
            "prompt_tokens_details": {"cached_tokens": completion.num_cached_tokens},
        },
    }
    return _row(call, index, 200, body)


def failed_call(call: BatchCall, index: int, status_code: int, error: RowError) -> dict[str, Any]:
    """Return the output row for a call without an answer; `status_code` says whose fault it is."""
    kind = "invalid_request_error" if status_code == REFUSED else "server_error"
    body = {
        "error": {
            "message": error.shown(as_flag),
            "type": kind,
            "param": error.param,
            "code": error.code,
            "line": error.line,
        }
    }
    return _row(call, index, status_code, body)


def _choice(call: BatchCall, output: SampleOutput) -> dict[str, Any]:
    content: dict[str, Any] = (
        {"message": {"role": "assistant", "content": output.text}}
        if call.is_chat
        else {"text": output.text}
    )
    return {
        "index": output.index,
        **content,
        "logprobs": None,
        "finish_reason": output.finish_reason.value,
    }


def _row(call: BatchCall, index: int, status_code: int, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "index": index,
        "id": f"batch_req_{index}",
        "custom_id": call.custom_id,
        "response": {"status_code": status_code, "request_id": f"req_{index}", "body": body},
        "error": None,
    }
