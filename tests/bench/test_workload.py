"""The rows that a bench runs."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from pagedrun.paged.bench.workload import Lengths, Workload
from pagedrun.paged.values.errors import UsageError


class TestWorkload:
    def test_groups_begin_alike_and_rows_go_on_alone(self) -> None:
        requests = Workload(6, 10, 5, 4, group_size=3).requests(512)
        prompts = [request.prompt_token_ids for request in requests]
        assert [len(prompt) for prompt in prompts] == [15] * 6
        assert len({prompt[:10] for prompt in prompts}) == 2
        assert prompts[0][:10] == prompts[2][:10] != prompts[3][:10]
        assert len({prompt[10:] for prompt in prompts}) == 6
        assert all(0 <= token_id < 512 for prompt in prompts for token_id in prompt)

    def test_are_the_same_every_time_and_answered_in_full(self) -> None:
        workload = Workload(2, 3, 4, 5)
        assert workload.requests(512) == workload.requests(512)
        assert workload.requests(512) != Workload(2, 3, 4, 5, seed=1).requests(512)
        params = workload.requests(512)[0].params
        assert (params.max_tokens, params.ignore_eos, params.is_greedy) == (5, True, True)

    def test_every_row_draws_its_own_lengths(self) -> None:
        workload = Workload(400, 3, Lengths(2, 9), Lengths(4, 6))
        requests = workload.requests(512)
        assert requests == workload.requests(512)
        prompts = [len(request.prompt_token_ids) for request in requests]
        outputs = [request.params.max_tokens for request in requests]
        assert set(prompts) == set(range(5, 13))
        assert set(outputs) == {4, 5, 6}
        assert all(count > 20 for count in Counter(prompts).values())
        assert prompts != [
            len(each.prompt_token_ids) for each in replace(workload, seed=1).requests(512)
        ]
        assert workload.prompt_tokens == 8.5
        assert workload.unique == Lengths(2, 9)
        assert not workload.has_one_length

    def test_a_range_of_one_is_that_number(self) -> None:
        workload = Workload(6, 4, Lengths(5, 5), Lengths(3, 3))
        assert workload.requests(512) == Workload(6, 4, 5, 3).requests(512)
        assert workload == Workload(6, 4, 5, 3)
        assert workload.has_one_length

    def test_warming_up_takes_a_moment(self) -> None:
        short = Workload(400, 4096, Lengths(2, 900), 500).warm_up()
        assert (short.rows, short.shared) == (16, 512)
        assert (short.unique, short.output) == (Lengths(2, 8), 3)

    @pytest.mark.parametrize(
        ("sizes", "flag"),
        [
            ((0, 1, 1, 2), "rows"),
            ((1, -1, 1, 2), "shared"),
            ((1, 1, 0, 2), "unique"),
            ((1, 1, Lengths(0, 8), 2), "unique"),
            ((1, 1, 8, Lengths(1, 9)), "output"),
        ],
    )
    def test_refuses_what_cannot_be(self, sizes: tuple[Any, ...], flag: str) -> None:
        with pytest.raises(UsageError, match=f"^{flag} is "):
            Workload(*sizes)
