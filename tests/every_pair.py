"""Products of parameters, of which the default run takes enough for every pair of values to meet.

What two parameters do together is where kernels go wrong, a third that matters besides is rare.
So the default run takes few cases in which each pair occurs, and `pytest -m long` all the others.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Case = tuple[int, ...]  # for each parameter, which of its values


def every_pair(*fixtures: str, **values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize by the product of `values`; what the pairs do not need is marked `long`.

    fixtures: the names that are not arguments of the test but parameters of its fixtures.
    """
    cases = list(product(*(range(len(each)) for each in values.values())))
    needed = set(covering(cases))
    return pytest.mark.parametrize(
        list(values),
        [
            pytest.param(
                *(each[index] for each, index in zip(values.values(), case, strict=True)),
                marks=() if case in needed else pytest.mark.long,
            )
            for case in cases
        ],
        indirect=list(fixtures),
    )


def covering(cases: list[Case]) -> Iterator[Case]:
    """Yield cases that hold every pair of the product, most new pairs first."""
    missing = {pair for case in cases for pair in pairs_of(case)}
    while missing:
        best = max(cases, key=lambda case: len(missing & pairs_of(case)))
        missing -= pairs_of(best)
        yield best


def pairs_of(case: Case) -> set[tuple[tuple[int, int], ...]]:
    """Return the pairs of (parameter, value) that a case holds."""
    return set(combinations(enumerate(case), min(2, len(case))))
