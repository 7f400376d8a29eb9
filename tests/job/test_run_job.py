"""The whole job, with an engine that answers from a script."""

import errno
import hashlib
import io
import json
import os
import signal
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.control.signals import JobInterrupted
from pagedrun.paged.job.job import JobResult, run_job
from pagedrun.paged.job.listener import Phase, SilentListener
from pagedrun.paged.job.output.output_file import OutputError
from pagedrun.paged.job.output.report_file import empty_engine_report
from pagedrun.paged.job.tally import Tally
from pagedrun.paged.report.record.timeline import StepRecord
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import EngineError, ModelError, RowError, UsageError
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling import SamplingParams
from tests.job.scripted_model import Answer, ScriptedModel, ScriptedRun, config_for, echo

OUTPUT_KEYS = ["index", "id", "text", "finish_reason", "outputs", "usage", "input", "error"]


class Heard(SilentListener):
    """Keeps what the job told."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.warnings: list[str] = []
        self.rows: list[tuple[int, int]] = []
        self.steps = 0

    def on_phase(self, phase: Phase) -> None:
        self.phases.append(phase)

    def on_step(self, record: StepRecord) -> None:
        self.steps += 1

    def on_tally(self, tally: Tally) -> None:
        self.rows.append((tally.ok, tally.failed))

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path


def run(
    place: Path, rows: Sequence[Any], answer: Answer = echo, **changes: Any
) -> tuple[JobResult, list[dict[str, Any]]]:
    result = run_job(config_for(place, rows, **changes), None, ScriptedModel(answer).open())
    return result, output_rows(place)


def output_rows(place: Path) -> list[dict[str, Any]]:
    data = (place / "out.jsonl").read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def side_file(place: Path, suffix: str) -> Any:
    return json.loads((place / f"out.jsonl{suffix}").read_text(encoding="utf-8"))


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


class TestOrder:
    """What is wrong is said before anything is loaded, and before anything is destroyed."""

    @pytest.mark.parametrize(
        ("data", "changes", "match"),
        [
            ("", {}, "empty input"),
            ("\n\n", {}, "empty input"),
            ('{"id":1,"prompt":"a"}\n{"id":1,"prompt":"b"}\n', {}, "ids must be unique"),
            ('{"prompt":"a"}\n', {"input": "missing.jsonl"}, "cannot be read"),
            ('{"prompt":"a"}\n', {"output": "no/such/folder/x"}, "folder does not exist"),
            ('{"prompt":"a"}\n', {"output": "-", "ordered": True}, "ordered"),
            (
                '{"prompt":"a"}\n',
                {"engine": EngineConfig(model=Path("m"), max_model_len=65)},
                "max_model_len is 65",
            ),
            (
                '{"prompt":"a"}\n',
                {"sampling": SamplingParams(stop_token_ids=(200,))},
                "stop_token_ids",
            ),
        ],
    )
    def test_refused_before_weights_are_read(
        self, place: Path, data: str, changes: dict[str, Any], match: str
    ) -> None:
        (place / "in.jsonl").write_text(data)
        (place / "old.jsonl").write_text("precious\n")
        model = ScriptedModel()
        settings = {"output": str(place / "old.jsonl"), "overwrite": True, **changes}
        with pytest.raises(UsageError, match=match):
            run_job(config_for(place, **settings), None, model.open())
        assert model.num_loads == 0
        assert (place / "old.jsonl").read_text() == "precious\n"
        assert not list(place.glob("*.json"))

    def test_a_model_that_cannot_be_loaded_leaves_no_output(self, place: Path) -> None:
        class Broken(ScriptedModel):
            def load_engine(self) -> ScriptedModel:
                raise ModelError("a shard is missing")

        with pytest.raises(ModelError):
            run_job(config_for(place, [{"prompt": "a"}]), None, Broken().open())
        assert sorted(path.name for path in place.iterdir()) == ["in.jsonl", "model"]

    def test_weights_are_not_read_for_rows_that_all_fail(self, place: Path) -> None:
        model = ScriptedModel()
        config = config_for(place, [{"text": "a"}, "torn"])
        result = run_job(config, None, model.open())
        assert model.num_loads == 0
        assert result.report["rows"] == {"total": 2, "ok": 0, "failed": 2, "skipped": 0}
        assert set(result.report) >= set(empty_engine_report())
        assert len(output_rows(place)) == 2

    def test_the_listener_hears_it_all(self, place: Path) -> None:
        heard = Heard()
        rows = [{"prompt": "a"}, {"x": 1}, {"prompt": "b" * 63}]
        run_job(config_for(place, rows), heard, ScriptedModel().open())
        assert heard.phases == list(Phase)
        assert heard.rows == [(0, 0), (0, 1), (1, 1), (2, 1)]
        assert heard.steps == 2
        assert "1 of 3 rows cannot be asked; the first is line 2" in heard.warnings[0]
        assert "max_tokens of 1 rows was cut" in heard.warnings[1]

    def test_the_first_row_that_the_engine_cannot_answer_is_told_once(self, place: Path) -> None:
        def nan(request: Request) -> Completion:
            return Completion(request, error=RowError("nan_logits", "not a number"))

        heard = Heard()
        config = config_for(place, [{"id": "a", "prompt": "a"}, {"prompt": "b"}, "torn"])
        result = run_job(config, heard, ScriptedModel(nan).open())
        assert heard.warnings[1:] == ["row 'row-1', line 2, cannot be answered: not a number"]
        assert result.report["errors"] == {"nan_logits": 2, "invalid_json_line": 1}


class TestSideFiles:
    def test_the_report_is_the_engines_with_the_rows(self, place: Path) -> None:
        result, _ = run(place, [{"prompt": "a"}, {"x": 1}])
        report = side_file(place, ".report.json")
        assert report == result.report
        assert next(iter(report)) == "rows"
        assert report["tokens"]["prompt"] == 7
        assert report["finish_reasons"] == {"error": 1, "stop": 1}
        assert result.report_path == place / "out.jsonl.report.json"

    def test_the_report_goes_where_it_is_asked_to(self, place: Path) -> None:
        path = place / "elsewhere.json"
        run(place, [{"prompt": "a"}], report=path)
        assert json.loads(path.read_text())["rows"]["ok"] == 1
        assert not (place / "out.jsonl.report.json").exists()

    @pytest.mark.parametrize("name", ["in.jsonl", "out.jsonl", "model", "missing/x", "exists"])
    def test_a_report_that_cannot_be_written_is_refused_first(self, place: Path, name: str) -> None:
        (place / "exists").write_text("precious")
        with pytest.raises(UsageError, match="report"):
            run(place, [{"prompt": "a"}], report=place / name)
        assert (place / "exists").read_text() == "precious"
        assert not (place / "out.jsonl").exists()

    def test_the_manifest_says_what_was_run(self, place: Path) -> None:
        sampling = SamplingParams(max_tokens=4, stop=("x",))
        run(place, [{"prompt": "a"}, "torn"], sampling=sampling, origins={"stop": "flag"})
        manifest = side_file(place, ".run.json")
        assert manifest["status"] == "finished"
        assert manifest["rows"] == {"total": 2, "ok": 1, "failed": 1, "skipped": 0}
        assert manifest["model"] == {
            "path": str(place / "model"),
            "config_json_sha256": hashlib.sha256(b"{}").hexdigest(),
            "files_sha256": hashlib.sha256().hexdigest(),  # the folder has no others
        }
        parameters = manifest["parameters"]
        assert parameters["stop"] == {"value": ["x"], "origin": "flag"}
        assert parameters["max_tokens"] == {"value": 4, "origin": "default"}
        assert parameters["block_size"] == {"value": 16, "origin": "default"}
        assert parameters["max_model_len"] == {"value": 64, "origin": "default"}

    def test_a_manifest_stands_from_the_start(self, place: Path) -> None:
        seen: list[Any] = []

        def look(request: Request) -> Completion:
            seen.append(side_file(place, ".run.json"))
            return echo(request)

        run(place, [{"prompt": "a"}], look)
        assert (seen[0]["status"], seen[0]["ended"]) == ("running", None)
        assert seen[0]["rows"] == {"total": 1, "ok": 0, "failed": 0, "skipped": 0}

    def test_files_are_private_and_nothing_else_is_left(self, place: Path) -> None:
        run(place, [{"prompt": "a"}], ordered=True)
        beside = {f"out.jsonl{suffix}" for suffix in (".run.json", ".report.json", ".snapshot.npz")}
        names = {"out.jsonl"} | beside
        made = {path.name for path in place.iterdir()} - {"in.jsonl", "model"}
        assert made == names
        assert {stat.S_IMODE((place / name).stat().st_mode) for name in names} == {0o600}

    def test_a_report_never_takes_the_place_of_a_device(self, place: Path) -> None:
        with pytest.raises(UsageError, match="report /dev/null: name a file"):
            run(place, [{"prompt": "a"}], report=Path("/dev/null"), overwrite=True)
        assert Path("/dev/null").is_char_device()

    def test_a_snapshot_that_cannot_be_written_costs_a_warning_and_no_row(
        self, place: Path
    ) -> None:
        (place / "out.jsonl.snapshot.npz").mkdir()
        heard = Heard()
        result = run_job(config_for(place, [{"prompt": "a"}]), heard, ScriptedModel(echo).open())
        assert result.num_failed == 0
        assert [each for each in heard.warnings if "out.jsonl.snapshot.npz" in each]

    def test_a_snapshot_of_another_run_is_not_left_beside_this_one(self, place: Path) -> None:
        snapshot = place / "out.jsonl.snapshot.npz"
        snapshot.write_bytes(b"old")
        run(place, [{"nothing": "to ask"}])
        assert not snapshot.exists()

    def test_a_device_gets_no_files_beside_it(self, place: Path) -> None:
        result = run_job(
            config_for(place, [{"prompt": "a"}], output="/dev/null"), None, ScriptedModel().open()
        )
        assert (result.report_path, result.manifest_path) == (None, None)


class TestFailures:
    def test_an_engine_that_dies_leaves_the_rows_it_answered(self, place: Path) -> None:
        def die_at_a(request: Request) -> Completion:
            if request.index == 0:
                raise EngineError("the pool is gone")
            return echo(request)

        with pytest.raises(EngineError):
            run(place, [{"prompt": "a"}, {"prompt": "b"}], die_at_a)
        assert [row["index"] for row in output_rows(place)] == [1]
        assert side_file(place, ".run.json")["status"] == "failed"
        assert side_file(place, ".run.json")["rows"]["ok"] == 1
        assert not (place / "out.jsonl.report.json").exists()

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda request: echo(Request(0, request.prompt_token_ids, request.params)),
            lambda request: echo(Request(99, request.prompt_token_ids, request.params)),
            lambda request: Completion(request),
        ],
        ids=["one row twice", "a row never asked", "no answer and no error"],
    )
    def test_an_engine_that_miscounts_is_found_out(self, place: Path, wrong: Answer) -> None:
        with pytest.raises(EngineError, match="please report this"):
            run(place, [{"prompt": "a"}, {"prompt": "b"}], wrong)

    def test_an_engine_that_forgets_a_row_is_found_out(self, place: Path) -> None:
        class Forgetful(ScriptedModel):
            def start(self, requests: Sequence[Request], *given: Any, **more: Any) -> ScriptedRun:
                return super().start(requests[1:], *given, **more)

        config = config_for(place, [{"prompt": "a"}, {"prompt": "b"}])
        with pytest.raises(EngineError, match="2 rows were read but 1 are accounted for"):
            run_job(config, None, Forgetful().open())

    def test_a_full_disk_stops_the_job_with_whole_rows(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, written = os.write, []

        def fill_up(descriptor: int, data: bytes) -> int:
            written.append(data)
            if len(written) == 2:
                return real(descriptor, data[:10])
            if len(written) > 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(descriptor, data)

        monkeypatch.setattr("pagedrun.paged.job.output.output_file.os.write", fill_up)
        with pytest.raises(OutputError, match="No space left"):
            run(place, [{"prompt": letter} for letter in "abc"])
        assert [row["index"] for row in output_rows(place)] == [2]

    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_stops_the_job_between_two_rows(
        self, place: Path, signum: signal.Signals
    ) -> None:
        inherited = signal.getsignal(signum)  # ignored, where the tests run under nohup
        before = signal.default_int_handler
        signal.signal(signum, before)

        def stop_at_b(request: Request) -> Completion:
            if request.index == 1:
                os.kill(os.getpid(), signum)
            return echo(request)

        try:
            with pytest.raises(JobInterrupted) as caught:
                run(place, [{"prompt": letter} for letter in "abc"], stop_at_b)
            assert signal.getsignal(signum) is before
        finally:
            signal.signal(signum, inherited)
        assert caught.value.signum == signum
        assert caught.value.__notes__ == [
            "1 of 3 rows are written and whole; the same command with --resume does the rest"
        ]
        assert [row["index"] for row in output_rows(place)] == [2]
        assert side_file(place, ".run.json")["status"] == "interrupted"

    def test_a_signal_while_a_row_is_written_lets_the_row_finish(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, calls = os.write, []

        def signalled_in_the_middle(descriptor: int, data: bytes) -> int:
            calls.append(data)
            if len(calls) == 1:
                count = real(descriptor, data[:10])
                os.kill(os.getpid(), signal.SIGTERM)
                return count
            return real(descriptor, data)

        monkeypatch.setattr(
            "pagedrun.paged.job.output.output_file.os.write", signalled_in_the_middle
        )
        with pytest.raises(JobInterrupted):
            run(place, [{"prompt": "a"}, {"prompt": "b"}])
        assert [row["index"] for row in output_rows(place)] == [1]

    def test_a_signal_at_the_very_start_leaves_a_manifest(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.ftruncate

        def signalled(descriptor: int, length: int) -> None:
            real(descriptor, length)
            os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr("pagedrun.paged.job.output.output_file.os.ftruncate", signalled)
        with pytest.raises(JobInterrupted):
            run(place, [{"prompt": "a"}])
        assert output_rows(place) == []
        assert side_file(place, ".run.json")["status"] == "interrupted"

    def test_a_signal_while_loading_leaves_no_output(self, place: Path) -> None:
        class Slow(ScriptedModel):
            def load_engine(self) -> ScriptedModel:
                os.kill(os.getpid(), signal.SIGTERM)
                return self

        with pytest.raises(JobInterrupted):
            run_job(config_for(place, [{"prompt": "a"}]), None, Slow().open())
        assert not (place / "out.jsonl").exists()
