"""A thread that makes one item ahead: order, errors, its bound, its end."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from pagedrun.paged.planning.windows import BackgroundPlanner

SECONDS = 240.0  # for a thread to do what it can do at once


class Items:
    """Numbers from 1 on, each made when it is let; says which have been begun."""

    def __init__(self, count: int) -> None:
        self.begun = [threading.Event() for _ in range(count + 1)]
        self.let = [threading.Event() for _ in range(count + 1)]

    def __iter__(self) -> Iterator[int]:
        for number in range(1, len(self.begun)):
            self.begun[number].set()
            assert self.let[number].wait(SECONDS)
            yield number


def test_items_come_in_order_and_then_no_more() -> None:
    ahead = BackgroundPlanner(0, [1, 2, 3])
    assert list(ahead) == [0, 1, 2, 3]
    assert next(ahead, None) is None
    ahead.close()


def test_nothing_is_made_before_the_first_is_taken_and_one_item_after_that() -> None:
    items = Items(3)
    ahead = BackgroundPlanner(0, items)
    assert not items.begun[1].is_set()
    for number in range(3):
        items.let[number].set()
        assert next(ahead) == number
        assert items.begun[number + 1].wait(SECONDS)  # while the one before is in use
        assert not any(each.is_set() for each in items.begun[number + 2 :])
    items.let[3].set()
    assert list(ahead) == [3]


def test_one_item_at_most_waits_to_be_taken() -> None:
    items = Items(4)
    for each in items.let:
        each.set()
    ahead = BackgroundPlanner(0, items)
    for number in range(2):
        assert next(ahead) == number
        assert items.begun[number + 1].wait(SECONDS)
        assert not items.begun[number + 2].wait(0.05)  # nothing keeps it but the bound
    ahead.close()


def test_an_error_is_raised_where_the_item_would_have_been_taken() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    ahead = BackgroundPlanner(0, failing())
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(OSError, match="gone"):
        next(ahead)
    assert next(ahead, None) is None


@pytest.mark.parametrize("num_taken", [0, 1, 2])
def test_closing_ends_the_thread(num_taken: int, planners: Callable[[], list[str]]) -> None:
    items = Items(5)
    for each in items.let[:2]:
        each.set()
    ahead = BackgroundPlanner(0, items)
    taken = [next(ahead) for _ in range(num_taken)]
    assert taken == [0, 1][:num_taken]
    for each in items.let:
        each.set()
    ahead.close()
    assert planners() == []
    assert next(ahead, None) is None


def test_closing_lets_go_of_an_error_that_nobody_took() -> None:
    """Its frames hold the thread's, and with that what was made: a whole window."""

    class Made:
        """An item that a weak reference can follow."""

    items = [Made()]
    last, failed = weakref.ref(items[0]), threading.Event()

    def failing() -> Iterator[Made]:
        made = items.pop()
        yield Made()
        failed.set()
        raise OSError(f"gone, and {made} with it")

    ahead = BackgroundPlanner(Made(), failing())
    taken = [next(ahead), next(ahead)]
    assert len(taken) == 2
    assert failed.wait(SECONDS)
    ahead.close()
    gc.disable()
    try:
        del ahead
        assert last() is None
    finally:
        gc.enable()
