"""The output row: one JSON object with the same keys whatever became of the row.

Rows of an OpenAI batch file are answered in that format instead.
"""

from typing import Any

from pagedrun.paged.job.inputs.row import at_line
from pagedrun.paged.job.output.batch_row import BROKEN, REFUSED, answered_call, failed_call
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.option_names import as_flag
from pagedrun.paged.values.request import Completion, FinishReason, SampleOutput


def answered_row(row: JobRow, completion: Completion) -> dict[str, Any]:
    """Return the output row for what the engine said, be it answers or an error."""
    if completion.error is not None:
        return failed_row(row, completion.error, BROKEN)
    if row.call is not None:
        answer = answered_call(row.call, row.index, row.num_prompt_tokens, completion)
        usage = answer["response"]["body"]["usage"]
        usage["truncated_tokens"] = row.num_truncated_tokens
        usage["max_tokens_clamped"] = row.clamped
        return answer
    first = completion.outputs[0]
    result = _common(row)
    result["text"] = first.text
    result["finish_reason"] = first.finish_reason.value
    result["outputs"] = [_output(output) for output in completion.outputs]
    result["usage"]["cached_tokens"] = completion.num_cached_tokens
    result["usage"]["completion_tokens"] = sum(
        len(output.token_ids) for output in completion.outputs
    )
    return result


def failed_row(row: JobRow, error: RowError, status_code: int = REFUSED) -> dict[str, Any]:
    """Return the output row for a row that has no answer; a `BatchCall` has a status code too."""
    error = at_line(error, row.line)
    if row.call is not None:
        return failed_call(row.call, row.index, status_code, error)
    result = _common(row)
    result["error"] = error.to_dict(as_flag)
    return result


def _common(row: JobRow) -> dict[str, Any]:
    """Return all keys in order, as they are before there is an answer."""
    return {
        "index": row.index,
        "id": row.id,
        "text": None,
        "finish_reason": FinishReason.ERROR.value,
        "outputs": [],
        "usage": {
            "prompt_tokens": row.num_prompt_tokens,
            "cached_tokens": 0,
            "completion_tokens": 0,
            "truncated_tokens": row.num_truncated_tokens,
            "max_tokens_clamped": row.clamped,
        },
        "input": row.input,
        "error": None,
    }


def _output(output: SampleOutput) -> dict[str, Any]:
    return {
        "index": output.index,
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason.value,
        "stop_reason": output.stop_reason,
        "cumulative_logprob": None,
        "logprobs": None,
    }
