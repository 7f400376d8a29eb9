"""Products of parameters, of which the default run takes enough for every pair of values to meet.

What two parameters do together is where kernels go wrong, a third that matters besides is rare.
So the default run takes few cases in which each pair occurs, and `pytest -m long` all the others.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest
from _pytest.mark import ParameterSet

Case = tuple[int, ...]  # for each parameter, which of its values


def every_pair(
    *fixtures: str, in_turn: str | None = None, **values: Sequence[Any]
) -> pytest.MarkDecorator:
    """Parametrize by the product of `values`; what the pairs do not need is marked `long`.

    fixtures: the names that are not arguments of the test but parameters of its fixtures.
    in_turn: a parameter whose pairs are not needed, only each of its values: these take turns with
    the pairs of the others. Values that are marked `long` (`long_except`) are in no needed pair.
    """
    ordered = {name: sorted(each, key=_is_long) for name, each in values.items()}
    usual = {name: sum(not _is_long(value) for value in each) for name, each in ordered.items()}
    if in_turn is None:
        needed = set(covering(list(product(*map(range, usual.values())))))
    else:
        needed = set(turns(usual.pop(in_turn), [*values].index(in_turn), [*usual.values()]))
    return pytest.mark.parametrize(
        list(values),
        [
            pytest.param(
                *(
                    each[index].values[0] if _is_long(each[index]) else each[index]
                    for each, index in zip(ordered.values(), case, strict=True)
                ),
                marks=() if case in needed else pytest.mark.long,
            )
            for case in product(*(range(len(each)) for each in ordered.values()))
        ],
        indirect=list(fixtures),
    )


def long_except(values: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Return values of a parameter, those that are not `kept` in the default run marked `long`."""
    return [each if each in kept else pytest.param(each, marks=pytest.mark.long) for each in values]


def _is_long(value: Any) -> bool:
    return isinstance(value, ParameterSet)


def covering(cases: list[Case]) -> Iterator[Case]:
    """Yield cases that hold every pair of the product, most new pairs first."""
    pairs = {case: pairs_of(case) for case in cases}
    missing = {pair for each in pairs.values() for pair in each}
    while missing:
        best = max(cases, key=lambda case: len(missing & pairs[case]))
        missing -= pairs[best]
        yield best


def turns(size: int, place: int, others: list[int]) -> Iterator[Case]:
    """Yield cases of every pair of the `others`, with each of `size` values at `place` in turn."""
    around = list(covering(list(product(*map(range, others)))))
    for index in range(max(size, len(around))):
        case = around[index % len(around)]
        yield (*case[:place], index % size, *case[place:])


def pairs_of(case: Case) -> set[tuple[tuple[int, int], ...]]:
    """Return the pairs of (parameter, value) that a case holds."""
    return set(combinations(enumerate(case), min(2, len(case))))
