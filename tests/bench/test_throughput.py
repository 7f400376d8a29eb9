"""`bench throughput`: settings in turns."""

from typing import Any

import pytest

from pagedrun.paged.bench.result import Spread
from pagedrun.paged.bench.throughput import Comparison, ThroughputBench
from pagedrun.paged.bench.workload import Lengths, Workload
from pagedrun.paged.values.errors import UsageError
from tests.bench.tiny import FLOAT32, TINY, silent


class TestThroughput:
    workload = Workload(6, 48, 8, 5)

    def test_settings_take_turns_and_agree(self) -> None:
        said: list[str] = []
        other = Comparison("no-cache", {"prefix_caching": False, "max_num_seqs": 2})
        bench = ThroughputBench(TINY, self.workload, FLOAT32, other, repeat=2)
        result: Any = bench.run(said.append)
        turns = [line.split(",")[0] for line in said if " of 2" in line]
        assert turns == ["pagedrun", "no-cache", "no-cache", "pagedrun"]
        ours, theirs = result["contenders"]
        assert (ours["runs"][0].decode_rows, theirs["runs"][0].decode_rows) == (6, 2)
        assert (ours["runs"][0].hit_rate > 0, theirs["runs"][0].hit_rate) == (True, 0.0)
        (ratio,) = result["ratios"]
        assert (ratio["name"], ratio["rows_alike"], ratio["rows"]) == ("no-cache", 6, 6)
        times = [[run.total_s for run in each["runs"]] for each in (ours, theirs)]
        expected = Spread.of_ratios(times[1], times[0])
        assert expected is not None
        assert ratio["end_to_end"] == expected

    def test_a_setting_of_the_weights_loads_them_again(self) -> None:
        """The times of an engine are those of its own kernels."""
        flags = {**FLOAT32, "device": "cpu", "kernel_set": "portable"}
        other = Comparison("activations=exact", {"activations": "exact"})
        result: Any = ThroughputBench(TINY, self.workload, flags, other).run(silent)
        ours, theirs = (each["runs"][0].ops for each in result["contenders"])
        assert ours.keys() == theirs.keys() != set()
        (ratio,) = result["ratios"]
        assert (ratio["rows_alike"], ratio["rows"]) == (6, 6)

    def test_rows_of_several_lengths(self) -> None:
        workload = Workload(6, 16, Lengths(2, 30), Lengths(2, 9))
        requests = workload.requests(512)
        (ours,) = ThroughputBench(TINY, workload, FLOAT32).run(silent)["contenders"]
        (run,) = ours["runs"]
        assert run.prompt_tokens == sum(len(each.prompt_token_ids) for each in requests)
        assert run.generated_tokens == sum(each.params.max_tokens for each in requests)

    def test_a_setting_is_not_compared_with_itself(self) -> None:
        other = Comparison("--prefix-caching", {"prefix_caching": True})
        bench = ThroughputBench(TINY, self.workload, FLOAT32, other)
        with pytest.raises(
            UsageError, match="compare: --prefix-caching is already set by the other flags"
        ):
            bench.run(silent)
