"""What a job leaves beside its output: report, manifest, snapshot."""

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.job import run_job
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.heard import Heard, run, side_file
from tests.support.scripted_model import ScriptedModel, config_for, echo


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
        suffixes = (".run.json", ".report.json", ".snapshot.npz", ".digests")
        beside = {f"out.jsonl{suffix}" for suffix in suffixes}
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

    def test_a_report_of_another_run_is_not_left_beside_one_that_is_cut_off(
        self, place: Path
    ) -> None:
        def cut_off(request: Request) -> Completion:
            raise KeyboardInterrupt

        report = place / "elsewhere.json"
        run(place, [{"prompt": "a"}], report=report)
        assert report.exists()
        with pytest.raises(KeyboardInterrupt):
            run(place, [{"prompt": "a"}], cut_off, report=report, overwrite=True)
        assert not report.exists()

    def test_a_device_gets_no_files_beside_it(self, place: Path) -> None:
        result = run_job(
            config_for(place, [{"prompt": "a"}], output="/dev/null"), None, ScriptedModel().open()
        )
        assert (result.report_path, result.manifest_path) == (None, None)
