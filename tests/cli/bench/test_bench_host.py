"""`pagedrun bench host` as a user meets it."""

import json
from pathlib import Path
from typing import Any

from pagedrun.cli.bench.host import host_sheets
from pagedrun.paged.bench.result import Spread
from tests.support.command import Command


class TestHost:
    ARGS = ("--shared", "8", "--unique", "4", "--output", "2:6", "--repeat", "2")

    def test_json_alone_on_stdout_and_a_table_on_stderr(self, bench: Command) -> None:
        status, out, err = bench("host", "--seats", "8,4", *self.ARGS, "--json")
        assert status == 0
        result = json.loads(out)
        assert result["bench"] == "host"
        assert result["device"] == {"type": "cpu"}
        assert result["workload"] == {
            "rows_per_seat": 8,
            "shared": 8,
            "unique": 4,
            "output": {"low": 2, "high": 6},
        }
        assert result["repeat"] == 2
        assert [(point["seats"], point["rows"]) for point in result["points"]] == [(4, 32), (8, 64)]
        for point in result["points"]:
            assert list(point) == [
                *("seats", "rows", "generated_tokens", "total_s", "tokens_per_s"),
                *("decode_s_per_row", "admission_step_s", "step_s", "steps", "asked"),
            ]
            assert point["total_s"]["count"] == 2
        for words in (
            "8 a seat x (8 shared + 4 unique + 2 to 6 out)",
            "The host's own work",
            "µs/row",
            "Middle of 2 runs (least…most).",
        ):
            assert words in err

    def test_a_result_is_kept(self, bench: Command, tmp_path: Path) -> None:
        path = tmp_path / "host.md"
        status, out, err = bench("host", "--seats", "4", *self.ARGS, "--save", str(path), "--quiet")
        assert (status, out, err) == (0, "", "")
        assert "| seats | rows | tokens/s |" in path.read_text()

    def test_a_figure_that_no_step_gave_is_a_dash(self) -> None:
        def spread(value: float) -> Spread:
            return Spread(value, value, value, value, 1)

        point = {
            "seats": 1024,
            "rows": 8192,
            "generated_tokens": 1,
            "total_s": spread(5.75),
            "tokens_per_s": spread(205_104.0),
            "decode_s_per_row": None,
            "admission_step_s": spread(0.00367),
        }
        result: Any = {"points": [point], "repeat": 1, "as_gpu": False}
        (sheet,) = host_sheets(result)
        assert sheet.rows == [("1,024", "8,192", "205,104", "–", "3.67", "5.75")]
