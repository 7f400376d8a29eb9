"""When rows may join: many at once, and never so late that nobody runs."""

from pagedrun.paged.scheduling.admission_policy import Refill
from tests.support.drive import Drive, request


def test_everybody_may_join_until_no_more_can() -> None:
    refill = Refill(0.25)
    assert refill.is_open(0)
    assert refill.is_open(7)
    refill.close(8)
    assert [refill.is_open(count) for count in (8, 7, 6, 2)] == [False, False, True, True]


def test_it_stays_open_until_no_more_can_join() -> None:
    refill = Refill(0.25)
    refill.close(8)
    assert refill.is_open(6)
    refill.open()
    assert refill.is_open(8)


def test_a_lone_row_is_never_waited_for_by_nobody() -> None:
    refill = Refill(0.9)
    refill.close(1)
    assert not refill.is_open(1)
    assert refill.is_open(0)


def test_rows_that_fork_count_among_those_that_ran() -> None:
    refill = Refill(0.25)
    refill.close(4)
    assert not refill.is_open(8)
    assert not refill.is_open(7)
    assert refill.is_open(6)


def test_without_a_share_nobody_waits() -> None:
    refill = Refill(0.0)
    refill.close(8)
    assert refill.is_open(8)


def test_a_run_begins_rows_in_few_steps_and_answers_the_same() -> None:
    """Answers of many lengths, so that rows end one after the other."""

    def drive(share: float) -> Drive:
        rows = [request(i, [1, 2, 10 + i], max_tokens=5 + i % 60) for i in range(120)]
        return Drive(rows, 4, num_blocks=300, max_num_seqs=8, refill_share=share).finish()

    def beginning(done: Drive) -> int:
        return sum(any(chunk.start < 3 for chunk in step.chunks) for step in done.batches)

    at_once, waiting = drive(0.0), drive(0.5)
    assert waiting.outputs == at_once.outputs
    assert beginning(waiting) < 0.8 * beginning(at_once)
    assert len(waiting.batches) <= 1.5 * len(at_once.batches)
