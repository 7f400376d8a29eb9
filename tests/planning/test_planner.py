"""Planner: windows one after another, refused rows, rows that are answered already."""

from collections.abc import Iterable

from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.planner import Planner, RequestLimits
from pagedrun.paged.planning.windows import Windows
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams

LIMITS = RequestLimits(max_model_len=12, vocab_size=100)


def rows(prompts: Iterable[tuple[int, ...]], n: int = 1) -> list[Request]:
    params = SamplingParams(max_tokens=2, temperature=1.0, n=n)
    return [Request(index, prompt, params) for index, prompt in enumerate(prompts)]


class Whole:
    """An earlier answer that is whole."""

    is_whole = True
    token_ids = (7,)

    def completion(self, request: Request) -> Completion:
        return Completion(request, (SampleOutput(0, "", (7,), FinishReason.LENGTH),))


class Earlier:
    """An earlier run that has answered some rows; keeps how it was asked for each."""

    def __init__(self, *indices: int) -> None:
        self._indices = indices
        self.asked: dict[int, int] = {}

    def find(self, request: Request, num_read_once_tokens: int) -> Whole | None:
        self.asked[request.index] = num_read_once_tokens
        return Whole() if request.index in self._indices else None

    def tokens_at(self, index: int) -> tuple[int, ...]:
        return ()


def test_a_window_goes_on_where_the_one_before_ended() -> None:
    planner = Planner(PlanRules(4), LIMITS)
    first = planner.window(rows([(1, 2, 3, 4, 5, 6, 7, 8, 9)]), has_next=True)
    assert first.plan.num_keep_blocks.tolist() == [2]
    found = planner.window(rows([(1, 2, 3, 4, 5, 6, 7, 8, 50), (60,)]), has_next=False)
    assert found.plan.num_common_tokens.tolist() == [8, 0]
    assert found.plan.num_keep_blocks.tolist() == [0, 0]


def test_a_refused_row_is_told_of_once() -> None:
    """An earlier run has written the error of row 1."""
    asked = rows([(1, 2), (3,) * 13, (4,) * 13])
    window = Planner(PlanRules(4), LIMITS, done={1}).window(asked, has_next=False)
    assert [each.request.index for each in window.refused] == [2]
    assert [each.request.index for each in window.plan] == [0]


def test_rows_that_are_answered_here_or_elsewhere_do_not_run() -> None:
    asked = rows([(number, 2) for number in range(5)])
    earlier = Earlier(1, 4)
    planner = Planner(PlanRules(4), LIMITS, done={2}, earlier=earlier)
    window = planner.window(asked, has_next=False)
    assert sorted(each.request.index for each in window.plan) == [0, 3]
    assert [each.request.index for each in window.unrun()] == [1, 4]
    assert len(window) == 4
    assert earlier.asked.keys() == {0, 1, 3, 4}


def test_earlier_answers_are_asked_for_as_the_rows_are_read() -> None:
    """Bytes depend on what is read together: by other rows, and by samples if they are worth it."""
    shared = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (8,), (9, 9, 9)]
    asked = [
        *rows(shared),
        *(
            Request(4 + r.index, r.prompt_token_ids, r.params)
            for r in rows([(20,), (30, 31, 32)], n=2)
        ),
    ]
    rules, earlier = PlanRules(4, read_once=ReadOnce(2, 4)), Earlier()
    plan = Plan(asked, rules, earlier=earlier)
    assert earlier.asked == {each.request.index: each.num_read_once_tokens for each in plan}
    assert earlier.asked == {0: 4, 1: 4, 2: 0, 3: 0, 4: 0, 5: 3}


def test_a_window_has_at_most_its_rows() -> None:
    windows = Windows(range(7), WindowSize(rows=3, num_bytes=1), lambda: 0)
    found = []
    while not windows.is_last:
        found.append(windows.read())
    assert found == [[0, 1, 2], [3, 4, 5], [6]]
