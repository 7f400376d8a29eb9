"""What several measurements say together."""

from pagedrun.paged.bench.result import Spread


class TestSpread:
    def test_of_values(self) -> None:
        assert Spread.of([3.0, 1.0, 8.0]) == Spread(3.0, 4.0, 1.0, 8.0, 3)
        assert Spread.of([]) is None

    def test_of_ratios_is_pair_by_pair(self) -> None:
        assert Spread.of_ratios([8.0, 9.0], [2.0, 1.0]) == Spread(6.5, 6.5, 4.0, 9.0, 2)

    def test_of_ratios_leaves_out_what_was_not_measured(self) -> None:
        assert Spread.of_ratios([8.0, None, 1.0], [2.0, 1.0, None]) == Spread(4.0, 4.0, 4.0, 4.0, 1)
        assert Spread.of_ratios([1.0], [0.0]) is None
