"""Windows of texts: the steps that they are cut into, and whose rows are finished by them."""

import pytest

from pagedrun.paged.execution.pooling.text_windows import (
    DistinctText,
    TextWindow,
    count_steps,
    cut_step,
    finished_rows,
)
from pagedrun.paged.values.pooling import PooledText
from pagedrun.paged.values.request import Request


def text(*token_ids: int, part: int = 0) -> PooledText:
    return PooledText(token_ids, len(token_ids), part)


@pytest.mark.parametrize(
    ("most", "expected"),
    [(10, [[3, 3, 4], [9, 1], [1]]), (3, [[3], [3], [4], [9], [1, 1]]), (99, [[3, 3, 4, 9, 1, 1]])],
)
def test_a_step_has_no_more_tokens_unless_it_is_one_text(
    most: int, expected: list[list[int]]
) -> None:
    texts = [DistinctText(text(*range(length))) for length in (3, 3, 4, 9, 1, 1)]
    steps, start = [], 0
    while start < len(texts):
        step = cut_step(texts, start, most)
        steps.append([each.num_tokens for each in step])
        start += len(step)
    assert steps == expected
    assert count_steps(texts, most) == len(expected)


@pytest.mark.parametrize(
    ("order", "expected"), [((0, 1, 2), [[], [0], [1]]), ((2, 1, 0), [[], [1], [0]])]
)
def test_a_row_is_finished_with_the_last_of_its_texts_and_once(
    order: tuple[int, ...], expected: list[list[int]]
) -> None:
    one, two, three = text(1, 2), text(3), text(4, 5)
    rows = [
        Request.pooling(0, (one, two._replace(part=1), one._replace(part=2))),
        Request.pooling(1, (three, two)),
    ]
    window = TextWindow.of(rows)
    assert [each.num_uses for each in window.distinct] == [2, 2, 1]
    found = [
        [row.request.index for row in finished_rows([window.distinct[number]])] for number in order
    ]
    assert found == expected
