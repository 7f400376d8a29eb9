"""RunStatistics: the report's figures, by hand on batches and pools small enough to see."""

import pytest

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.metrics.run_statistics import RunStatistics
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams

SIZE = 4


def statistics(
    num_blocks: int = 10, max_model_len: int = 20, num_shared_blocks_planned: int = 0
) -> RunStatistics:
    return RunStatistics(
        block_size=SIZE,
        pools=[PoolShape(2, None, num_blocks, 100)],
        max_model_len=max_model_len,
        num_shared_blocks_planned=num_shared_blocks_planned,
    )


def request(num_prompt: int, n: int = 1) -> Request:
    return Request(0, (1,) * num_prompt, SamplingParams(n=n))


def completion(
    num_prompt: int, num_outputs: list[int], num_cached: int = 0, error: RowError | None = None
) -> Completion:
    outputs = tuple(
        SampleOutput(index, "", (3,) * length, FinishReason.STOP)
        for index, length in enumerate(num_outputs)
    )
    return Completion(request(num_prompt, max(len(outputs), 1)), outputs, num_cached, error)


def test_the_widest_step() -> None:
    counted, pool = statistics(), BlockPool(4, SIZE)
    counted.note_step(12, 1, [pool], 1)
    counted.note_step(3, 3, [pool], 1)
    assert (counted.max_step_tokens, counted.max_step_logits) == (12, 3)


def test_utilization_at_the_peak() -> None:
    """Of the steps at the peak number of blocks, the one that held the most tokens."""
    counted, pool = statistics(), BlockPool(10, SIZE)
    one = pool.allocate(1) or []
    pool.record_fill(one[0], 4)
    counted.note_step(1, 1, [pool], 1)
    assert counted.kv()["utilization_at_peak"] == 1.0
    two = pool.allocate(2) or []
    pool.record_fill(two[0], 4)
    pool.record_fill(two[1], 1)
    counted.note_step(1, 1, [pool], 1)
    pool.record_fill(two[1], 2)
    counted.note_step(1, 1, [pool], 1)
    pool.release([*one, *two])
    counted.note_step(1, 1, [pool], 1)
    pool.allocate(3)  # as many blocks again, with nothing in them yet
    counted.note_step(1, 1, [pool], 1)
    figures = counted.kv()
    assert figures["peak_blocks"] == 3
    assert figures["utilization_at_peak"] == pytest.approx(10 / 12)
    assert figures["tail_waste"] == pytest.approx(2 / 12)


def test_a_shared_block_counts_once() -> None:
    counted, pool = statistics(), BlockPool(10, SIZE)
    blocks = pool.allocate(2) or []
    for block_id in blocks:
        pool.record_fill(block_id, 3)
    pool.share(blocks)
    counted.note_step(1, 1, [pool], 1)
    assert counted.kv()["peak_blocks"] == 2
    assert counted.kv()["utilization_at_peak"] == pytest.approx(6 / 8)


def test_a_run_without_steps() -> None:
    figures = statistics().kv()
    assert figures["peak_blocks"] == 0
    assert figures["utilization_at_peak"] == figures["tail_waste"] == 0.0
    assert figures["contiguous_utilization"] == 0.0
    assert figures["pool_bytes"] == 10 * SIZE * 100


def test_what_a_contiguous_engine_would_have_done() -> None:
    """Ten blocks of 4 tokens; reservations of 20: two requests. These hold 9 and 11 tokens."""
    counted = statistics()
    counted.note_completion(completion(5, [5]))
    counted.note_completion(completion(8, [4]))
    figures = counted.kv()
    assert figures["contiguous_max_requests"] == 2
    assert figures["contiguous_utilization"] == pytest.approx((9 + 11) / 2 / 20)
    assert figures["paged_max_requests"] == 3  # three blocks each


def test_the_last_token_of_an_answer_is_not_stored() -> None:
    counted = statistics()
    counted.note_completion(completion(4, [1]))
    assert counted.kv()["contiguous_utilization"] == pytest.approx(4 / 20)
    assert counted.kv()["paged_max_requests"] == 10


@pytest.mark.parametrize(
    ("num_prompt", "num_cached", "private"),
    [(9, 8, 1), (9, 4, 2), (8, 7, 1)],  # the last: found whole, its last token computed again
)
def test_cached_blocks_are_not_private(num_prompt: int, num_cached: int, private: int) -> None:
    """Of ten blocks two hold the shared prefix; the others go round."""
    counted = statistics(num_shared_blocks_planned=2)
    num_output = 12 - num_prompt + 1  # 12 tokens stored, three blocks
    counted.note_completion(completion(num_prompt, [num_output], num_cached))
    assert counted.kv()["paged_max_requests"] == 8 // private


def test_answers_that_need_no_block_of_their_own_are_bounded() -> None:
    counted = statistics()
    counted.note_completion(completion(4, [1], num_cached=3))
    assert counted.kv()["paged_max_requests"] == 10 * SIZE


def test_finish_reasons_are_counted_per_sample_and_errors_per_row() -> None:
    counted = statistics()
    counted.note_completion(completion(4, [1, 2, 3]))
    counted.note_completion(completion(4, [], error=RowError("nan_logits", "no token")))
    assert counted.finish_reasons == {"stop": 3, "error": 1}
