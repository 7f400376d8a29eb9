"""Answers arrive as they were sent, but for their prompts, which the driver has."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

from pagedrun.paged.replicas.replica_messages import Answered
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.recorded_steps import record

OUTPUT = SampleOutput(0, "text 東京", (5, 6), FinishReason.STOP)
REQUEST = Request(7, tuple(range(1000)), SamplingParams(seed=3))
COMPLETION = Completion(REQUEST, (OUTPUT,))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"outputs": ()},
        {"outputs": (OUTPUT, replace(OUTPUT, index=1, stop_reason="x", reasoning="so"))},
        {"outputs": (replace(OUTPUT, finish_reason=FinishReason.LENGTH, beam_score=-0.5),)},
        {"num_cached_tokens": 9, "num_read_once_tokens": 3},
        {"is_copied": True},
        {"outputs": (), "error": RowError("nan_logits", "why", param="p")},
    ],
)
def test_an_answer_arrives_as_it_was(changes: dict[str, Any]) -> None:
    sent = replace(COMPLETION, **changes)
    data = pickle.dumps(Answered((sent, COMPLETION), record()))
    assert len(data) < 1000
    found = pickle.loads(data)
    assert found.record == record()
    for each, wanted in zip(found.completions, (sent, COMPLETION), strict=True):
        assert each.request == Request(7, (), SamplingParams())
        if wanted.error is not None:
            assert (each.error.code, str(each.error)) == (wanted.error.code, str(wanted.error))
            assert each.error.param == wanted.error.param
            each = replace(each, error=wanted.error)
        assert replace(each, request=REQUEST) == wanted
