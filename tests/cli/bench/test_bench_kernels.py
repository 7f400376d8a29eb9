"""`pagedrun bench kernels` as a user meets it."""

import json
from pathlib import Path
from typing import Any

from pagedrun.cli.bench.kernels import kernels_sheets
from pagedrun.paged.bench.result import Spread
from tests.cli.bench.small import HEADS, SIZES, TINY
from tests.support.command import Command


class TestKernels:
    def test_two_tables_for_each_part(self, bench: Command) -> None:
        status, out, err = bench("kernels", *TINY, *SIZES, "--json")
        assert status == 0
        result = json.loads(out)
        assert result["bench"] == "kernels"
        assert [point["context"] for point in result["decode"]] == [40, 80]
        assert (len(result["prefix"]), len(result["prefill"])) == (1, 4)
        for point in result["decode"]:
            assert list(point["contenders"]) == ["contiguous", "paged"]
            assert all(each["of_roof"] > 0 for each in point["contenders"].values())
            assert point["ratios"]["paged over contiguous"]["count"] == 2
        for words in (
            "Decode attention, ms",
            "Decode attention, GB/s (of roofline)",
            "Attention over a shared prefix, ms",
            "Prefill attention, TFLOP/s (of roofline)",
            "Other ops, ms",
            "sample, greedy",
            "GB/s of a copy or a sum, the faster one",
            "tiny: 4 query heads, 2 kv heads of 16, float32",
        ):
            assert words in err

    def test_parts_and_heads_can_be_chosen(self, bench: Command, tmp_path: Path) -> None:
        path = tmp_path / "kernels.md"
        args = ["--only", "prefill,decode", *HEADS]
        status, out, err = bench(
            "kernels", *TINY, *SIZES, *args, "--json", "--quiet", "--save", str(path)
        )
        assert (status, err) == (0, "")
        result = json.loads(out)
        assert {"prefix", "ops"} & result.keys() == set()
        shape = result["shape"]
        heads = (shape["num_heads"], shape["num_kv_heads"], shape["head_dim"], shape["block_size"])
        assert heads == (8, 4, 32, 8)
        assert "### Decode attention, ms" in path.read_text()

    def test_two_forms_failures_and_what_was_left_out_are_shown(self) -> None:
        def took(seconds: float) -> dict[str, Any]:
            spread = Spread(seconds, seconds, seconds, seconds, 1)
            return {"seconds": spread, "gb_per_s": 1 / seconds, "of_roof": 0.5}

        def ratio(value: float) -> Spread:
            return Spread(value, value, value, value, 1)

        names = ("paged v1 over contiguous", "paged v2 over contiguous", "v1 over v2")
        point: Any = {
            "context": 8192,
            "batch": 1,
            "contenders": {
                "contiguous": took(0.002),
                "paged v1": took(0.003),
                "paged v2": {"failed": "wrong: a row differs by 0.5"},
            },
            "ratios": dict(zip(names, map(ratio, (1.5, 1.1, 1.79)), strict=True)),
        }
        skipped: Any = [
            {
                "part": "decode",
                "context": 32_768,
                "batch": 128,
                "reason": "memory",
                "needed_bytes": 2**35,
                "free_bytes": 2**34,
            },
            {"part": "ops", "op": "silu_mul", "rows": 64, "reason": "time", "estimated_s": 12.0},
            {"part": "prefix", "prefix": 128, "group": 8, "reason": "failure", "failure": "Oops"},
        ]
        sheets = kernels_sheets({"decode": [point], "skipped": skipped})
        times, rates, left_out = sheets
        assert times.header == ("context", "batch", "paged v1", "paged v2", "contiguous", *names)
        (row,) = times.rows
        assert row == ("8,192", "1", "3.00", "failed", "2.00", "1.50x", "1.10x", "1.79x")
        assert "paged v2 at 8,192 x 1: wrong: a row differs by 0.5." in times.caption
        assert rates.rows == [("8,192", "1", "333 (50%)", "–", "500 (50%)")]
        assert left_out.rows == [
            ("decode", "32,768 x 128", "takes 32.0 GiB of memory, 16.0 GiB may be taken"),
            ("ops", "silu_mul x 64", "takes about 12.0 s, more than --budget leaves"),
            ("prefix", "128 x 8", "Oops"),
        ]
