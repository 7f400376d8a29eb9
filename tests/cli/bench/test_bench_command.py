"""`pagedrun bench` as a user meets it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli.bench import app
from pagedrun.cli.bench.host_sheets import host_sheets
from pagedrun.cli.bench.kernels import kernels_bench
from pagedrun.cli.bench.kernels_sheets import kernels_sheets
from pagedrun.cli.bench.options.kernels_options import KernelsOptions
from pagedrun.cli.bench.setting import changed_setting, comparison, lengths, numbers
from pagedrun.paged.bench.host.host import HostBench
from pagedrun.paged.bench.memory.memory import MemoryBench
from pagedrun.paged.bench.memory.normal_lengths import NormalLengths
from pagedrun.paged.bench.runs.lengths import Lengths
from pagedrun.paged.bench.runs.model import BenchModel
from pagedrun.paged.bench.runs.prefix import Mode, PrefixBench
from pagedrun.paged.bench.runs.throughput import Comparison, ThroughputBench
from pagedrun.paged.bench.runs.workload import Workload
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from tests.cli.light_command import light_command
from tests.command import Command

TINY = ["--shape", "tiny", "--dtype", "float32"]
SMALL = [*TINY, *["--rows", "4", "--shared", "48", "--unique", "8", "--output", "4"]]


# A layer too small for its caches, as `bench kernels` gets it from the command line.
KERNELS = KernelsOptions(shape="tiny", batches="1,2", repeat=2, contexts="40", only="decode")

SIZES = [
    *["--context", "40,80", "--batch", "2", "--prefix", "128", "--group", "3"],
    *["--chunk", "8,24", "--before", "0,16", "--repeat", "2"],
]
HEADS = ["--heads", "8", "--kv-heads", "4", "--head-dim", "32", "--block-size", "8"]


@pytest.fixture
def bench(pagedrun: Command) -> Command:
    return partial(pagedrun, "bench")


class TestThroughput:
    def test_json_alone_on_stdout_and_tables_on_stderr(self, bench: Command) -> None:
        args = [*SMALL, "--compare", "no-prefix-caching", "--repeat", "2", "--profile", "--json"]
        status, out, err = bench("throughput", *args)
        assert status == 0
        result = json.loads(out)
        assert result["command"] == f"pagedrun bench throughput {' '.join(args)}"
        assert result["workload"]["rows"] == 4
        assert [each["name"] for each in result["contenders"]] == [
            "pagedrun",
            "--no-prefix-caching",
        ]
        assert result["ratios"][0]["rows_alike"] == 4
        assert result["hardware"]["versions"]["torch"]
        assert result["hardware"]["threads"] >= 1
        for word in (result["command"], "Throughput", "pagedrun is faster", "4 of 4"):
            assert word in err
        for op in ("PackedLinear", "decode_attention", "everything else"):
            assert op in err

    def test_against_transformers(self, bench: Command) -> None:
        status, _, err = bench("throughput", *SMALL, "--against", "transformers", "--repeat", "1")
        assert status == 0
        assert "than transformers" in err
        assert "4 of 4" in err  # float32: the same tokens

    def test_comparing_repeats_unless_told(self, bench: Command) -> None:
        for extra, repeat in (([], 1), (["--compare", "block-size=32"], 3)):
            _, out, _ = bench("throughput", *SMALL, "--json", "--quiet", *extra)
            assert json.loads(out)["repeat"] == repeat

    def test_engine_flags_reach_the_engine(self, bench: Command) -> None:
        extra = "--no-prefix-once --block-size 8 --max-num-seqs 2 --kv-cache-memory-bytes 1MiB"
        status, out, err = bench("throughput", *SMALL, *extra.split(), "--json", "--quiet")
        assert (status, err) == (0, "")
        config = json.loads(out)["config"]
        assert (config["prefix_once"], config["block_size"], config["max_num_seqs"]) == (
            False,
            8,
            2,
        )
        assert config["kv_cache_memory_bytes"] == 2**20

    @pytest.mark.parametrize("suffix", ["json", "md"])
    def test_a_result_is_kept(self, bench: Command, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"result.{suffix}"
        status, out, _ = bench("throughput", *SMALL, "--save", str(path))
        assert (status, out) == (0, "")
        text = path.read_text()
        if suffix == "json":
            assert json.loads(text)["bench"] == "throughput"
        else:
            assert "### Throughput" in text
            assert "| decode step, ms | " in text
            assert f"--save {path}`" in text


class TestPrefix:
    def test_tables_for_rows_attention_and_step(self, bench: Command) -> None:
        args = ["--prefix", "0,64", "--group", "1,4", "--output", "3", "--repeat", "1", "--json"]
        status, out, err = bench("prefix", *TINY, *args)
        assert status == 0
        result = json.loads(out)
        assert len(result["points"]) == 4
        assert result["config"]["max_num_seqs"] == 4
        for title in ("Rows per second", "Attention in a decode step of 2 layers", "whole decode"):
            assert title in err
        assert "Every point was run." in err

    def test_modes_are_called_alike_in_both_places(self) -> None:
        from pagedrun.cli.bench.prefix_sheets import MODES

        assert tuple(mode.value for mode in Mode) == MODES


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
            "GB/s of a copy, read + written",
            "tiny: 4 query heads, 2 kv heads of 16, float32",
        ):
            assert words in err

    def test_parts_and_heads_can_be_chosen(self, bench: Command, tmp_path: Path) -> None:
        path = tmp_path / "kernels.md"
        args = [
            "--only",
            "prefill,decode",
            "--heads",
            "8",
            "--kv-heads",
            "4",
            "--head-dim",
            "32",
            "--block-size",
            "8",
        ]
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
            spread = {"median": seconds, "low": seconds, "high": seconds, "count": 1}
            return {"seconds": spread, "gb_per_s": 1 / seconds, "of_roof": 0.5}

        def ratio(value: float) -> dict[str, Any]:
            return {"median": value, "low": value, "high": value, "count": 1}

        names = ("paged v1 over contiguous", "paged v2 over contiguous", "v1 over v2")
        point = {
            "context": 8192,
            "batch": 1,
            "contenders": {
                "contiguous": took(0.002),
                "paged v1": took(0.003),
                "paged v2": {"failed": "wrong: a row differs by 0.5"},
            },
            "ratios": dict(zip(names, map(ratio, (1.5, 1.1, 1.79)), strict=True)),
        }
        skipped = [
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
                *("decode_s_per_row", "admission_step_s"),
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
        def spread(value: float) -> dict[str, Any]:
            return {"median": value, "low": value, "high": value, "count": 1}

        point = {
            "seats": 1024,
            "rows": 8192,
            "generated_tokens": 1,
            "total_s": spread(5.75),
            "tokens_per_s": spread(205_104.0),
            "decode_s_per_row": None,
            "admission_step_s": spread(0.00367),
        }
        (sheet,) = host_sheets({"points": [point], "repeat": 1})
        assert sheet.rows == [("1,024", "8,192", "205,104", "–", "3.67", "5.75")]


def test_without_a_command_a_short_run_of_all(
    bench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    benches = app._short_benches()
    assert benches.pop("memory") == MemoryBench()
    assert benches.pop("host") == HostBench(seats=(128,))
    assert {name: each.repeat for name, each in benches.items()} == {
        "throughput": 3,
        "prefix": 2,
        "kernels": 5,
    }
    model, flags = BenchModel.from_shape("tiny"), {"dtype": "float32"}
    short: dict[str, Any] = {
        "throughput": ThroughputBench(model, Workload(2, 16, 4, 3), flags),
        "prefix": PrefixBench(model, (16,), (2,), output=3, flags=flags),
        "kernels": kernels_bench(KERNELS, EngineConfig(Path(), device="cpu", dtype="float32")),
        "memory": MemoryBench(counts=(4, 12), lengths=NormalLengths(20, 8, 4, 64)),
        "host": HostBench(seats=(4,), shared=8, unique=4, output=Lengths(2, 6)),
    }
    monkeypatch.setattr(app, "_short_benches", lambda: short)
    status, out, err = bench("--json")
    assert status == 0
    results = json.loads(out)
    assert {name: each["bench"] for name, each in results.items()} == {
        "throughput": "throughput",
        "prefix": "prefix",
        "kernels": "kernels",
        "memory": "memory",
        "host": "host",
    }
    assert "Rows per second" in err
    assert "Decode attention" in err
    assert "12 requests that come and go" in err
    assert "The host's own work" in err


class TestRefusals:
    @pytest.mark.parametrize(
        ("args", "sentence"),
        [
            (["throughput", "--shape", "gpt-9"], "--shape gpt-9 is not known"),
            (["throughput", *TINY, "--layers", "9"], "--layers is 9; tiny has 2 layers"),
            (["throughput", *TINY, "--model", "x"], "--model and --shape exclude each other"),
            (["throughput", "--model", "x", "--layers", "1"], "--layers cuts a --shape"),
            (["throughput", "--revision", "main"], "--revision needs --model"),
            (["throughput", *TINY, "--save", "x.txt"], "must end in .json or .md"),
            (["throughput", *TINY, "--save", "no/such/x.md"], "there is no folder"),
            (["throughput", *TINY, "--compare", "nonsense"], "is not a setting of the engine"),
            (["throughput", *TINY, "--rows", "0"], "--rows"),
            (["throughput", *TINY, "--unique", "8:2"], "from the smaller number to the larger"),
            (["throughput", *TINY, "--output", "2-8"], "--output takes a number or a range"),
            (["throughput", *TINY, "--unique", "0:8"], "--unique is 0; it must be at least 1"),
            (
                ["throughput", *TINY, "--unique", "2:8", "--against", "transformers"],
                "--against transformers needs rows of one length",
            ),
            (["kernels", *TINY, "--context", "1k"], "--context takes whole numbers"),
            (["kernels", *TINY, "--prefix", "100"], "give a multiple of 128"),
            (["kernels", *TINY, "--only", "everything"], "--only everything: choose from decode"),
            (["kernels", *TINY, "--heads", "3"], "--heads 3 cannot be shared out"),
            (["kernels", "--shape", "gpt-9"], "--shape gpt-9 is not known"),
            (["prefix", *TINY, "--prefix", "1;2"], "--prefix takes whole numbers"),
            (["prefix", *TINY, "--group", "0"], "--group is 0; it must be at least 1"),
            (["host", "--seats", "0"], "--seats is 0; it must be at least 1"),
            (["host", "--seats", "many"], "--seats takes whole numbers"),
            (["host", "--output", "1"], "--output is 1; it must be at least 2"),
            (
                ["host", "--seats", "1", "--shared", "999999"],
                "rows have up to 1000319 tokens, and the model of this benchmark takes 40960; "
                "lower --shared, --unique or --output",
            ),
            (["--json", "throughput", *TINY], "behind the command"),
            (["nonsense"], "nonsense"),
        ],
    )
    def test_one_sentence(self, bench: Command, args: list[str], sentence: str) -> None:
        status, out, err = bench(*args)
        assert (status, out) == (2, "")
        assert sentence in " ".join(err.split())
        assert "Traceback" not in err

    @pytest.mark.parametrize(
        "text",
        ["model=x", "dtype=float32", "no-block-size", "prefix-once=1", "", "block-size", "=1"],
    )
    def test_of_what_cannot_be_compared(self, text: str) -> None:
        with pytest.raises(UsageError, match=f"--compare {text}"):
            changed_setting(text)

    def test_of_what_is_no_share(self) -> None:
        with pytest.raises(UsageError, match="gpu-memory-utilization=half: half is not a number"):
            changed_setting("gpu-memory-utilization=half")

    @pytest.mark.parametrize("value", ["x", "-1", "1.5", "", "９"])
    def test_of_values_that_are_none(self, value: str) -> None:
        with pytest.raises(UsageError, match="--compare block-size"):
            changed_setting(f"block-size={value}")


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("no-prefix-once", {"prefix_once": False}),
        ("--no-prefix-caching", {"prefix_caching": False}),
        ("prefix-once", {"prefix_once": True}),
        ("block-size=32", {"block_size": 32}),
        ("swap-space-bytes=1MiB", {"swap_space_bytes": 2**20}),
        ("gpu-memory-utilization=0.5", {"gpu_memory_utilization": 0.5}),
        ("enforce-eager", {"enforce_eager": True}),
        ("preemption-mode=recompute", {"preemption_mode": "recompute"}),
    ],
)
def test_what_compare_means(text: str, changes: dict[str, Any]) -> None:
    assert changed_setting(text) == changes


@pytest.mark.parametrize(
    ("text", "name", "changes"),
    [
        ("alone", "each row alone", {}),
        ("no-sharing", "no sharing", {"prefix_caching": False}),
    ],
)
def test_ways_to_share_less_are_no_flags(text: str, name: str, changes: dict[str, Any]) -> None:
    assert comparison(text) == Comparison(name, changes, alone=True)
    assert comparison("--block-size=8") == Comparison("--block-size=8", {"block_size": 8})


@pytest.mark.parametrize(
    ("text", "expected"), [("64", 64), ("100:1024", Lengths(100, 1024)), ("5:5", Lengths(5, 5))]
)
def test_what_a_length_means(text: str, expected: int | Lengths) -> None:
    assert lengths(text, "--unique") == expected


@pytest.mark.parametrize("text", ["", "a", "1:2:3", ":8", "8:", "-1", "1.5", "９"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(UsageError, match="--unique takes a number or a range"):
        lengths(text, "--unique")


def test_numbers_are_listed_once() -> None:
    assert numbers("4, 1,4", "--group") == [4, 1]


@pytest.mark.parametrize(
    "command", [[], ["throughput"], ["prefix"], ["kernels"], ["memory"], ["host"]]
)
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    assert light_command("bench", *command, "--help")


def test_every_flag_is_named_in_full_at_80_columns(
    bench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    flags = {
        "throughput": "--shape --layers --model --revision --rows --shared --unique --output "
        "--group-size --against --hf-batch --compare --repeat --profile --dtype --block-size "
        "--num-blocks --max-num-seqs --no-prefix-once --no-prefix-caching --save --json --quiet",
        "prefix": "--shape --layers --model --prefix --group --unique --output --repeat --budget "
        "--save --json --quiet",
        "kernels": "--shape --heads --kv-heads --head-dim --block-size --device --dtype --context "
        "--batch --prefix --group --chunk --before --full --only --repeat --budget --save --json "
        "--quiet",
        "memory": "--shape --model --revision --layers --kv-heads --head-dim --dtype --requests "
        "--mean --std --min-len --max-len --shared --seed --block-size --kv-cache-memory-bytes "
        "--save --json --quiet",
        "host": "--seats --shared --unique --output --repeat --save --json --quiet",
    }
    for command, names in flags.items():
        status, out, _ = bench(command, "--help")
        assert status == 0
        assert "Examples:" in out
        for name in names.split():
            assert f"{name} " in out, name
