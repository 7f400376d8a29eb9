"""What a job looks at first: what is refused, and when the model is loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.progress import Phase
from pagedrun.paged.metrics.report_sections import empty_engine_report
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError, RowError, UsageError
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.heard import Heard, output_rows
from tests.support.scripted_model import ScriptedModel, config_for


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
        seldom = (Phase.CALIBRATE, Phase.COMPILE)
        assert heard.phases == [each for each in Phase if each not in seldom]
        assert heard.rows == [(0, 0), (0, 1), (1, 1), (2, 1)]
        assert heard.steps == 2
        assert "1 of 3 rows is invalid; the first is line 2" in heard.warnings[0]
        assert "max_tokens of 1 rows was reduced" in heard.warnings[1]

    def test_compiling_is_told_where_the_engine_compiles(self, place: Path) -> None:
        class Compiling(ScriptedModel):
            def warm_up(self, on_compile: Callable[[], None] = lambda: None) -> None:
                on_compile()

        heard = Heard()
        run_job(config_for(place, [{"prompt": "a"}]), heard, Compiling().open())
        assert heard.phases == [each for each in Phase if each is not Phase.CALIBRATE]

    def test_the_first_row_that_the_engine_cannot_answer_is_told_once(self, place: Path) -> None:
        def nan(request: Request) -> Completion:
            return Completion(request, error=RowError("nan_logits", "not a number"))

        heard = Heard()
        config = config_for(place, [{"id": "a", "prompt": "a"}, {"prompt": "b"}, "torn"])
        result = run_job(config, heard, ScriptedModel(nan).open())
        assert heard.warnings[1:] == ["row 'row-1', line 2, cannot be answered: not a number"]
        assert result.report["errors"] == {"nan_logits": 2, "invalid_json_line": 1}
