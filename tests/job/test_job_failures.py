"""A job whose engine, disk or process fails: whole rows are left, and it is said."""

import errno
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.output.output_file import OutputError
from pagedrun.paged.job.signals import JobInterrupted
from pagedrun.paged.values.errors import EngineError
from pagedrun.paged.values.request import Completion, Request
from tests.support.heard import output_rows, run, side_file
from tests.support.scripted_model import Answer, ScriptedModel, ScriptedRun, config_for, echo


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
        assert caught.value.__notes__ == ["1 of 3 rows saved; continue with --resume"]
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
            monkeypatch.undo()  # a second signal would end the process
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
