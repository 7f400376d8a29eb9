"""What is counted of two ways' answers and scores."""

import numpy as np
import pytest

from pagedrun.paged.bench.accuracy import Answer, Scores, answer_agreement, text_agreement


def answer(*tokens: int, gaps: tuple[float, ...] | None = None) -> Answer:
    return Answer(tokens, gaps or (5.0,) * len(tokens))


def test_a_first_difference_is_a_near_tie_by_the_references_gap_there() -> None:
    reference = [
        answer(1, 2, 3),
        answer(1, 2, 3, gaps=(9.0, 0.05, 0.01)),
        answer(4, 5, 6, gaps=(0.01, 0.01, 0.2)),
    ]
    measured = [
        answer(1, 2, 3),
        answer(1, 7, 3, gaps=(9.0, 8.0, 8.0)),  # the measured way's own gap does not count
        answer(4, 5, 9, gaps=(0.01, 0.01, 0.01)),
    ]
    assert answer_agreement(measured, reference, 0.1) == {
        "prompts": 3,
        "same": 1,
        "positions": 9,
        "positions_before": 3 + 1 + 2,
        "near_tie": 0.1,
        "near_ties": 1,
        "differences": [
            {"prompt": 1, "position": 1, "gap": 0.05},
            {"prompt": 2, "position": 2, "gap": 0.2},
        ],
    }


@pytest.mark.parametrize(
    ("measured", "reference"), [((1, 9), (1, 9, 3)), ((1, 9, 3), (1, 9))], ids=["ends", "goes on"]
)
def test_an_answer_that_ends_earlier_differs_behind_its_end(
    measured: tuple[int, ...], reference: tuple[int, ...]
) -> None:
    found = answer_agreement([answer(*measured)], [answer(*reference)], 99.0)
    assert (found["same"], found["positions_before"], found["near_ties"]) == (0, 2, 0)
    assert found["differences"] == [{"prompt": 0, "position": 2, "gap": None}]


def test_scores_are_compared_place_by_place() -> None:
    measured = Scores(np.array([-1.0, -2.0, -3.0]), np.array([4, 5, 6]))
    reference = Scores(np.array([-1.0, -2.5, -1.0]), np.array([4, 9, 6]))
    assert text_agreement(measured, reference) == {
        "tokens": 3,
        "same_top": 2,
        "mean_difference": pytest.approx(2.5 / 3),
        "largest_difference": 2.0,
    }


def test_a_perplexity_past_all_floats_is_none() -> None:
    assert Scores(np.array([-9999.0]), np.array([0])).perplexity is None
