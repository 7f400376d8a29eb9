"""Prompts without room for an answer, bad rows of a strict job, and disks without room."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.output.output_file import OutputError
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.text.prompt import Overlong
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.scripted_model import ScriptedModel, config_for, echo

TWO = WindowSize(rows=2)


class Warned(JobListener):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def run(place: Path, rows: list[Any], **changes: Any) -> tuple[list[Any], list[str]]:
    listener = Warned()
    run_job(config_for(place, rows, **changes), listener, ScriptedModel().open())
    lines = (place / "out.jsonl").read_text().splitlines()
    return sorted(map(json.loads, lines), key=lambda row: row["index"]), listener.warnings


class TestOverlong:
    @pytest.mark.parametrize(
        ("kind", "length", "max_tokens", "kept"),
        [
            (Overlong.ERROR, 100, 4, range(100)),
            (Overlong.TRUNCATE_LEFT, 63, 4, range(63)),
            (Overlong.TRUNCATE_LEFT, 64, 4, range(4, 64)),
            (Overlong.TRUNCATE_RIGHT, 100, 4, range(60)),
            (Overlong.TRUNCATE_LEFT, 100, 1000, range(68, 100)),
            (Overlong.TRUNCATE_RIGHT, 100, 1, range(63)),
        ],
    )
    def test_what_is_kept(self, kind: Overlong, length: int, max_tokens: int, kept: range) -> None:
        assert kind.cut(tuple(range(length)), 64, max_tokens) == tuple(kept)

    def test_a_context_of_two_tokens(self) -> None:
        assert Overlong.TRUNCATE_LEFT.cut((1, 2, 3), 2, 9) == (3,)

    def test_it_is_recorded_in_the_row(self, place: Path) -> None:
        rows = [
            {"prompt": "x" * 70 + "end", "max_tokens": 4},
            {"prompt": "short", "max_tokens": 900},
            {"prompt": "x" * 70},
        ]
        got, warnings = run(place, rows, on_overlong=Overlong.TRUNCATE_LEFT)
        assert [row["error"] for row in got] == [None] * 3
        assert got[0]["text"] == "x" * 57 + "end!"
        usage = [(row["usage"]["truncated_tokens"], row["usage"]["prompt_tokens"]) for row in got]
        assert usage == [(13, 60), (0, 5), (10, 60)]
        assert [row["usage"]["max_tokens_clamped"] for row in got] == [False, True, False]
        assert "the prompts of 2 rows were truncated to fit max_model_len 64" in warnings

    def test_without_it_the_row_fails(self, place: Path) -> None:
        (row,), _ = run(place, [{"prompt": "x" * 70}])
        assert row["error"]["code"] == "prompt_too_long"
        assert row["usage"]["truncated_tokens"] == 0

    def test_another_way_of_cutting_is_another_job(self, place: Path) -> None:
        run(place, [{"prompt": "x" * 70}], on_overlong=Overlong.TRUNCATE_LEFT)
        with pytest.raises(UsageError, match=r"another on_overlong \(truncate-left, now error\)"):
            run(place, [], resume=True)


class TestStrict:
    @pytest.mark.parametrize(
        ("bad", "reason"),
        [
            ("torn {", r"line 2: .* \(invalid_json_line\)"),
            ({"prompt": 5}, r"line 2: .* \(unsupported_content\)"),
            ({"prompt": "x" * 70}, r"line 2: .* \(prompt_too_long\)"),
            ({"prompt": "a", "max_tokens": 0}, r"line 2: .* \(invalid_param\)"),
            ({"prompt_token_ids": [200]}, r"line 2: .* \(token_id_out_of_range\)"),
        ],
    )
    def test_one_bad_row_and_nothing_is_loaded(self, place: Path, bad: Any, reason: str) -> None:
        model = ScriptedModel()
        config = config_for(place, [{"prompt": "a"}, bad, {"prompt": "b"}], strict=True)
        with pytest.raises(UsageError, match=reason):
            run_job(config, None, model.open())
        assert model.num_loads == 0
        assert not (place / "out.jsonl").exists()

    @pytest.mark.parametrize("bad", ["torn {", {"prompt": 5}])
    def test_also_beyond_the_first_window(self, place: Path, bad: Any) -> None:
        model = ScriptedModel()
        rows = [{"prompt": letter} for letter in "abcde"]
        with pytest.raises(UsageError, match=r"line 6: .*strict refuses the whole input"):
            run_job(config_for(place, [*rows, bad], strict=True, window=TWO), None, model.open())
        assert model.num_loads == 0

    def test_good_rows_are_answered(self, place: Path) -> None:
        rows, _ = run(place, [{"prompt": letter} for letter in "abcde"], strict=True, window=TWO)
        assert [row["text"] for row in rows] == ["a!", "b!", "c!", "d!", "e!"]

    def test_rows_that_are_not_read_are_not_judged(self, place: Path) -> None:
        rows, _ = run(place, [{"prompt": "a"}, "torn {"], strict=True, limit=1)
        assert len(rows) == 1


class TestDiskSpace:
    def test_too_little_is_told_before_the_run(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Little:
            f_bavail, f_frsize = 1, 512

        monkeypatch.setattr(os, "statvfs", lambda path: Little)
        rows = [{"prompt": letter, "max_tokens": 50} for letter in "abcde"]
        _, warnings = run(place, rows)
        assert warnings == [
            f"{place}/out.jsonl: the disk has 512 bytes left, but 5 rows take at least 1.1 KiB, "
            "and up to 3.5 KiB if all answers reach their limits; if the disk becomes full, "
            "the run stops and can be resumed"
        ]

    def test_enough_is_not_worth_a_word(self, place: Path) -> None:
        assert run(place, [{"prompt": "a"}])[1] == []

    def test_a_full_disk_says_what_the_rest_will_take(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, lines = os.write, []

        def fill_up(descriptor: int, data: bytes) -> int:
            lines.append(data)
            if len(lines) > 2:
                raise OSError(28, os.strerror(28))
            return real(descriptor, data)

        monkeypatch.setattr("pagedrun.paged.job.output.output_file.os.write", fill_up)
        with pytest.raises(OutputError, match="make room on its disk") as caught:
            run(place, [{"prompt": letter} for letter in "abcd"])
        size = sum(map(len, lines[:2]))
        assert caught.value.__notes__ == [
            "2 of 4 rows saved; continue with --resume",
            f"the remaining rows will take about {size} bytes",
        ]


def test_rows_that_were_swallowed_are_noticed(place: Path) -> None:
    """Somebody else cuts the output while it is written: no success is reported."""

    def cut(request: Request) -> Completion:
        if request.index == 0:
            os.truncate(place / "out.jsonl", 5)
        return echo(request)

    config = config_for(place, [{"prompt": "a"}, {"prompt": "b"}])
    with pytest.raises(OutputError, match="was changed by another program"):
        run_job(config, None, ScriptedModel(cut).open())


def test_the_parameters_are_told_apart_from_the_rest(place: Path) -> None:
    run(place, [{"prompt": "a"}], sampling=SamplingParams(max_tokens=2))
    manifest = json.loads((place / "out.jsonl.run.json").read_text())
    assert manifest["parameters"]["on_overlong"] == {"value": "error", "origin": "default"}
