"""`pagedrun bench prefix` as a user meets it."""

import json

from pagedrun.paged.bench.prefix import Mode
from tests.cli.bench.small import TINY
from tests.support.command import Command


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
        from pagedrun.cli.bench.prefix import MODES

        assert tuple(mode.value for mode in Mode) == MODES
