from itertools import combinations, product
from typing import Any

import pytest

from tests.support.every_pair import every_pair, long_except

VALUES: dict[str, Any] = {
    "codes": ["int8", "fp8", None],
    "window": [None, 30],
    "size": [64, 80, 96, 128],
}


def test_the_default_run_keeps_every_pair_and_the_long_one_the_product() -> None:
    names, cases = every_pair(**VALUES).args
    assert names == list(VALUES)
    assert [case.values for case in cases] == list(product(*VALUES.values()))
    kept = [case.values for case in cases if not case.marks]
    assert len(kept) == 12  # as many as the two longest lists have pairs
    assert {mark.name for case in cases for mark in case.marks} == {"long"}
    for one, other in combinations(range(3), 2):
        values = list(VALUES.values())
        met = {(case[one], case[other]) for case in kept}
        assert met == set(product(values[one], values[other]))


def test_one_parameter_and_two_are_kept_whole() -> None:
    few: list[dict[str, Any]] = [{"size": [1, 2, 3]}, {"size": [1, 2], "window": [None, 5]}]
    for values in few:
        assert not any(case.marks for case in every_pair(**values).args[1])


@pytest.mark.parametrize("in_turn", ["codes", "size"])
def test_one_that_takes_turns_has_each_value_beside_every_pair_of_the_others(in_turn: str) -> None:
    names, cases = every_pair(in_turn=in_turn, **VALUES).args
    assert [case.values for case in cases] == list(product(*VALUES.values()))
    kept = [dict(zip(names, case.values, strict=True)) for case in cases if not case.marks]
    one, other = (name for name in names if name != in_turn)
    assert {case[in_turn] for case in kept} == set(VALUES[in_turn])
    assert {(case[one], case[other]) for case in kept} == set(product(VALUES[one], VALUES[other]))
    assert len(kept) < 12  # as many as every pair needs


@pytest.mark.parametrize("in_turn", [None, "window"])
def test_a_value_that_is_long_is_in_no_pair_of_the_default_run(in_turn: str | None) -> None:
    sizes = long_except(VALUES["size"], [80, 128])
    _, cases = every_pair(in_turn=in_turn, **{**VALUES, "size": sizes}).args
    assert {case.values for case in cases} == set(product(*VALUES.values()))
    kept = {case.values[::2] for case in cases if not case.marks}
    assert kept == set(product(VALUES["codes"], [80, 128]))
