"""`pagedrun bench` as a user meets it: all benches in short, what is refused, the help."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli.bench import app
from pagedrun.cli.bench.kernels import sized_bench
from pagedrun.cli.bench.options import changed_setting
from pagedrun.paged.bench.host import HostBench
from pagedrun.paged.bench.memory import MemoryBench, NormalLengths
from pagedrun.paged.bench.prefix import PrefixBench
from pagedrun.paged.bench.throughput import ThroughputBench
from pagedrun.paged.bench.workload import BenchModel, Lengths, Workload
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from tests.cli.bench.small import KERNELS, TINY
from tests.cli.light_command import light_command
from tests.support.command import Command


def test_without_a_command_a_short_run_of_all(
    bench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    benches: dict[str, Any] = dict(app._short_benches())
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
        "kernels": sized_bench(KERNELS, EngineConfig(Path(), device="cpu", dtype="float32")),
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
    assert "12 requests that join and leave" in err
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
            (["kernels", *TINY, "--heads", "3"], "--heads 3 cannot be divided"),
            (["kernels", "--shape", "gpt-9"], "--shape gpt-9 is not known"),
            (["prefix", *TINY, "--prefix", "1;2"], "--prefix takes whole numbers"),
            (["prefix", *TINY, "--group", "0"], "--group is 0; it must be at least 1"),
            (["host", "--seats", "0"], "--seats is 0; it must be at least 1"),
            (["host", "--seats", "many"], "--seats takes whole numbers"),
            (["host", "--output", "1"], "--output is 1; it must be at least 2"),
            (
                ["host", "--seats", "1", "--shared", "999999"],
                "rows have up to 1000319 tokens, but the model of this benchmark takes at most "
                "40960; lower --shared, --unique or --output",
            ),
            (["--json", "throughput", *TINY], "after the command"),
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
    "command", [[], ["throughput"], ["prefix"], ["kernels"], ["memory"], ["host"], ["accuracy"]]
)
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    assert light_command("bench", *command, "--help")


def test_every_flag_is_named_in_full_at_80_columns(
    bench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    flags = {
        "throughput": "--shape --layers --model --revision --rows --shared --unique --output "
        "--group-size --against --peer-path --hf-batch --compare --repeat --profile --dtype "
        "--block-size --num-blocks --max-num-seqs --no-prefix-once --no-prefix-caching "
        "--save --json --quiet",
        "prefix": "--shape --layers --model --prefix --group --unique --output --repeat --budget "
        "--save --json --quiet",
        "kernels": "--shape --heads --kv-heads --head-dim --block-size --device --dtype --context "
        "--batch --prefix --group --chunk --before --full --only --repeat --budget --save --json "
        "--quiet",
        "memory": "--shape --model --revision --layers --kv-heads --head-dim --dtype --requests "
        "--mean --std --min-len --max-len --shared --seed --block-size --kv-cache-memory-bytes "
        "--save --json --quiet",
        "host": "--seats --shared --unique --output --repeat --save --json --quiet",
        "accuracy": "--model --text --chunk --stride --max-chunks --prompts --output --against "
        "--against-dtype --near-tie --revision --tokenizer --device --dtype --quantization "
        "--kv-cache-dtype --kernel-set --max-model-len --max-num-seqs --save --json --quiet",
    }
    for command, names in flags.items():
        status, out, _ = bench(command, "--help")
        assert status == 0
        assert "Examples:" in out
        for name in names.split():
            assert f"{name} " in out, name
