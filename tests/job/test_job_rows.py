"""The rows of a whole job, with an engine that answers from a script."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.prompts.prompt_config import PromptConfig, PromptTemplate
from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.heard import Heard, output_rows, run, side_file
from tests.support.scripted_model import ScriptedModel, config_for

OUTPUT_KEYS = ["index", "id", "text", "finish_reason", "outputs", "usage", "input", "error"]


class TestRows:
    def test_an_answered_row_is_what_the_contract_says(self, place: Path) -> None:
        _, (row,) = run(place, [{"id": "a", "prompt": "hi", "n": 2, "keep": [1]}])
        assert list(row) == OUTPUT_KEYS
        output = {
            "index": 0,
            "text": "hi!",
            "token_ids": [1, 2],
            "finish_reason": "stop",
            "stop_reason": "!",
            "cumulative_logprob": None,
            "logprobs": None,
        }
        assert row == {
            "index": 0,
            "id": "a",
            "text": "hi!",
            "finish_reason": "stop",
            "outputs": [output, {**output, "index": 1}],
            "usage": {
                "prompt_tokens": 2,
                "cached_tokens": 1,
                "completion_tokens": 4,
                "truncated_tokens": 0,
                "max_tokens_clamped": False,
            },
            "input": {"keep": [1]},
            "error": None,
        }

    def test_failed_rows_have_the_same_keys(self, place: Path) -> None:
        def nan(request: Request) -> Completion:
            return Completion(request, error=RowError("nan_logits", "not a number"))

        _, rows = run(place, [{"id": 7, "prompt": "hi", "k": 1}, "{torn", {"k": 2}], nan)
        by_index = sorted(rows, key=lambda row: row["index"])
        assert [list(row) for row in rows] == [OUTPUT_KEYS] * 3
        assert [row["error"]["code"] for row in by_index] == [
            "nan_logits",
            "invalid_json_line",
            "missing_prompt",
        ]
        assert [row["error"]["line"] for row in by_index] == [1, 2, 3]
        assert [row["id"] for row in by_index] == [7, "row-1", "row-2"]
        assert [row["input"] for row in by_index] == [{"k": 1}, {}, {"k": 2}]
        assert all(row["text"] is None and row["outputs"] == [] for row in rows)
        assert by_index[0]["usage"]["prompt_tokens"] == 2

    def test_every_line_gives_one_row_whatever_it_holds(self, place: Path) -> None:
        lines = [
            {"prompt": "ok"},
            '{"prompt": "torn',
            "",
            '{"prompt": "a", "prompt": "b"}',
            r'{"prompt": "\ud800"}',
            {"prompt": "x" * 64},
            {"prompt": "x" * 100_000},
            {"prompt_token_ids": [200]},
            {"prompt": ""},
            {"prompt": "a", "max_tokens": True},
            {"prompt": "a", "trust_remote_code": True},
            {"id": "\x1b[2J[/red]\u202e", "prompt": "ok"},
        ]
        result, rows = run(place, lines)
        assert sorted(row["index"] for row in rows) == list(range(11))
        assert result.report["rows"] == {"total": 11, "ok": 2, "failed": 9, "skipped": 0}
        assert result.num_failed == 9
        assert result.report["finish_reasons"] == {"error": 9, "stop": 2}
        assert {row["id"] for row in rows} >= {"\x1b[2J[/red]\u202e"}

    def test_limit_reads_only_the_first_rows(self, place: Path) -> None:
        rows = [{"prompt": "a"}, "not json", {"prompt": "c"}]
        result, written = run(place, rows, limit=2)
        assert result.report["rows"]["total"] == len(written) == 2
        source = (place / "in.jsonl").read_bytes()
        assert side_file(place, ".run.json")["input"] == {
            "path": str(place / "in.jsonl"),
            "num_bytes": len(source),
            "sha256": hashlib.sha256(source).hexdigest(),
            "whole": True,
            "fingerprint": None,
            "first_window_sha256": hashlib.sha256(source).hexdigest(),
        }

    def test_completion_order_by_default_and_input_order_when_asked(self, place: Path) -> None:
        rows = [{"prompt": letter} for letter in "abc"]
        assert [row["index"] for row in run(place, rows)[1]] == [2, 1, 0]
        ordered = run(place, rows, ordered=True, overwrite=True)[1]
        assert [row["index"] for row in ordered] == [0, 1, 2]

    def test_accuracy_counts_rows_that_name_an_answer(self, place: Path) -> None:
        rows: list[Any] = [
            {"prompt": "a", "expected": "a!"},
            {"prompt": "b", "expected": " b!\n"},
            {"prompt": "c", "expected": "B!"},
            {"expected": "failed"},
            {"prompt": "d", "expected": 3},
            {"prompt": "e"},
        ]
        assert run(place, rows)[0].report["accuracy"] == {"expected": 4, "correct": 2}

    def test_without_expected_answers_there_is_no_accuracy(self, place: Path) -> None:
        assert "accuracy" not in run(place, [{"prompt": "a"}])[0].report

    def test_standard_streams(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        stdin = io.TextIOWrapper(io.BytesIO(b'\xef\xbb\xbf{"prompt":"a"}\r\n{"prompt":"b"}'))
        monkeypatch.setattr("sys.stdin", stdin)
        config = config_for(place, input="-", output="-")
        result = run_job(config, None, ScriptedModel().open())
        assert [json.loads(line)["text"] for line in capfd.readouterr().out.splitlines()] == [
            "b!",
            "a!",
        ]
        assert (result.report_path, result.manifest_path) == (None, None)
        assert sorted(path.name for path in place.iterdir()) == ["in.jsonl", "model"]


class TestSettingsThatChangeNothing:
    """They are told of: once for each key, with the count of rows and the first of them."""

    def _warnings(self, place: Path, rows: list[Any], **changes: Any) -> list[str]:
        heard = Heard()
        run_job(config_for(place, rows, **changes), heard, ScriptedModel().open())
        return heard.warnings

    def test_a_key_one_letter_from_a_known_one(self, place: Path) -> None:
        rows = [{"prompt": "a"}, *({"prompt": "b", "max_token": 3, "seeds": 1} for _ in range(4))]
        first, second = self._warnings(place, rows)
        assert "4 rows have a column max_token, the first is line 2" in first
        assert "did you mean max_tokens?" in first
        assert "column seeds" in second
        assert all(row["input"] == {"max_token": 3, "seeds": 1} for row in _inputs(place)[1:])

    @pytest.mark.parametrize(
        "row",
        [
            {"max_token": 3, "max_tokens": 4},
            {"max_token": None},
            {"votes": 3, "note": "x", "step": "y"},
            {"custom_id": "c", "method": "GET", "url": "x", "body": {}},
        ],
    )
    def test_columns_that_are_data_are_not(self, place: Path, row: dict[str, Any]) -> None:
        assert [w for w in self._warnings(place, [{"prompt": "a", **row}]) if "mean" in w] == []

    def test_a_column_that_the_template_reads_is_data(self, place: Path) -> None:
        prompts = PromptConfig(template=PromptTemplate("{{ q }}: {{ choices }}"))
        rows = [{"q": "a", "choices": ["x", "y"]}] * 2
        assert self._warnings(place, rows, prompts=prompts) == []

    def test_strict_refuses_it_with_its_line(self, place: Path) -> None:
        config = config_for(place, [{"prompt": "a"}, {"prompt": "b", "max_token": 3}], strict=True)
        with pytest.raises(
            UsageError, match=r"line 2: max_token sets nothing: did you mean max_to"
        ):
            run_job(config, None, ScriptedModel().open())
        assert not (place / "out.jsonl").exists()

    def test_several_answers_at_temperature_0(self, place: Path) -> None:
        rows = [{"prompt": "a"}, {"prompt": "b", "n": 3}, {"prompt": "c", "n": 2, "vote": "(.)"}]
        (told,) = self._warnings(place, rows)
        assert "2 rows ask for several answers at temperature 0" in told
        assert "the first is line 2 with n 3" in told

    @pytest.mark.parametrize(
        "row",
        [
            {"n": 2, "temperature": 0.5},
            {"n": 2, "beam_width": 2},
            {"temperature": 0, "n": 1},
            {"continuations": ["x", "y"]},
        ],
    )
    def test_answers_that_may_differ(self, place: Path, row: dict[str, Any]) -> None:
        assert self._warnings(place, [{"prompt": "a", **row}]) == []

    def test_n_for_all_rows_at_temperature_0(self, place: Path) -> None:
        sampling = SamplingParams(n=2, max_tokens=4)
        (told,) = self._warnings(place, [{"prompt": "a"}] * 3, sampling=sampling)
        assert "3 rows ask" in told


def _inputs(place: Path) -> list[dict[str, Any]]:
    return sorted(output_rows(place), key=lambda row: row["index"])
