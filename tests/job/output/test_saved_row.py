"""What a line of an output tells of its row."""

import json
from pathlib import Path

import pytest

from pagedrun.paged.files.atomic import json_fields
from pagedrun.paged.job.inputs.row import Columns, Row
from pagedrun.paged.job.output.output_row import WrittenRow, answered_row, failed_row
from pagedrun.paged.job.output.saved_rows import FinishedRows, SavedRow
from pagedrun.paged.job.prompts.requests import CHAT, JobRow, OpenAIRequest
from pagedrun.paged.text.prompt_encoder import EncodedPrompt
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams

COLUMNS: Columns = {"custom_id": "c", "method": "POST", "url": CHAT, "body": {}}
REQUEST = Request(3, (1,), SamplingParams())
ANSWER = Completion(REQUEST, (SampleOutput(0, "hello", (7,), FinishReason.STOP),))
ERROR = RowError("nan_logits", "no number")


def job_row(call: OpenAIRequest | None) -> JobRow:
    row = Row(3, 4, 0, b"", "c" if call else 12)
    return JobRow(row, EncodedPrompt(REQUEST, 1), {}, call=call)


def saved(row: WrittenRow) -> SavedRow | None:
    return SavedRow.parse(json.dumps(row, default=json_fields).encode())


def test_rows_of_both_kinds_are_read_again() -> None:
    plain, call = job_row(None), job_row(OpenAIRequest.of(COLUMNS))
    assert saved(answered_row(plain, ANSWER)) == SavedRow(3, ("12",), has_failed=False)
    assert saved(failed_row(plain, ERROR)) == SavedRow(3, ("12",), has_failed=True)
    assert saved(answered_row(call, ANSWER)) == SavedRow(3, ("batch_req_3", "c"), has_failed=False)
    assert saved(failed_row(call, ERROR)) == SavedRow(3, ("batch_req_3", "c"), has_failed=True)


@pytest.mark.parametrize(
    "line",
    [
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"index": 1}',
        b'{"index": -1, "error": null}',
        b'{"index": true, "error": null}',
        b'{"index": "1", "error": null}',
    ],
)
def test_other_lines_are_no_rows(line: bytes) -> None:
    assert SavedRow.parse(line) is None


@pytest.mark.parametrize("torn", [b'{"index": 1, "error": null}', b'{"index": 1, "err'])
def test_a_line_without_its_end_is_no_row(torn: bytes, tmp_path: Path) -> None:
    """Also if only the newline is missing: the next row would begin in the same line."""
    whole = b'{"index": 0, "error": null}\n'
    (tmp_path / "out.jsonl").write_bytes(whole + torn)
    found = FinishedRows.read(str(tmp_path / "out.jsonl"))
    assert (len(found), 1 in found, found.num_bytes) == (1, False, len(whole))
