"""`pagedrun bench throughput` as a user meets it."""

import json
from pathlib import Path

import pytest

from tests.cli.bench.small import SMALL
from tests.support.command import Command
from tests.support.fake_peers import batched_bench


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

    def test_against_llama_cpp(self, bench: Command, tmp_path: Path) -> None:
        args = ["--against", "llama.cpp", "--peer-path", batched_bench(tmp_path), "--repeat", "1"]
        status, _, err = bench("throughput", *SMALL, *args)
        assert status == 0
        row = next(line for line in err.splitlines() if "than llama.cpp" in line)
        assert row.rstrip().endswith("–")  # it gives no tokens to compare

    def test_a_missing_peer_is_one_sentence(
        self, bench: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PAGEDRUN_VLLM_PYTHON", raising=False)
        status, out, err = bench("throughput", *SMALL, "--against", "vllm")
        assert (status, out) == (2, "")
        assert "name it with --peer-path or PAGEDRUN_VLLM_PYTHON" in " ".join(err.split())

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
