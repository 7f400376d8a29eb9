"""Which steps of a run count as decode steps."""

from pagedrun.kernels.ops import Backend
from pagedrun.paged.bench.contender import StepLog
from pagedrun.paged.bench.op_timer import OpTimer
from pagedrun.paged.metrics.timeline import StepRecord


def _nothing() -> None:
    pass


def test_decode_steps_are_those_of_the_full_batch_that_touch_no_prompt() -> None:
    timer = OpTimer(Backend())
    log = StepLog(timer)
    generated = 0
    for called, tokens in [("pd", 1), ("p", 0), ("d", 3), ("d", 3), ("pd", 3), ("d", 2)]:
        if "p" in called:
            timer.timed("prefill_attention", _nothing)()
        if "d" in called:
            timer.timed("decode_attention", _nothing)()
        generated += tokens
        fields = {"generated_tokens": generated, "prompt_tokens": 99}  # counted when rows begin
        log(StepRecord(**{**dict.fromkeys(StepRecord.__dataclass_fields__, 0), **fields}))
    only_decode = [False, False, True, True, False, True]
    assert [step.only_decodes for step in log.steps] == only_decode
    assert log.decode_steps == log.steps[2:4]


def test_a_step_that_is_looked_at_late_is_known_by_the_ops_it_called() -> None:
    timer = OpTimer(Backend())
    log = StepLog(timer, async_scheduling=True)
    generated = 0
    for called, tokens in [("prefill_attention", 0), ("decode_attention", 1), ("", 1)]:
        if called:
            timer.timed(called, _nothing)()
        generated += tokens
        fields = {"generated_tokens": generated}
        log(StepRecord(**{**dict.fromkeys(StepRecord.__dataclass_fields__, 0), **fields}))
    assert [set(step.op_seconds) for step in log.steps] == [
        set(),
        {"prefill_attention"},
        {"decode_attention"},
    ]
    assert log.decode_steps == [log.steps[2]]
