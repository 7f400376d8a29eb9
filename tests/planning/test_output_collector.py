"""OutputCollector: samples that end in any order, votes that are open or decided, failed rows."""

import itertools

from pagedrun.paged.planning.duplicates import OutputCollector
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams

PROMPT = (1, 2, 3)


def asked(index: int, n: int, vote: str | None = None) -> Request:
    return Request(index, PROMPT, SamplingParams(n=n, temperature=1.0, vote=vote))


def said(sample: int, text: str) -> SampleOutput:
    return SampleOutput(sample, text, tuple(range(9 - sample)), FinishReason.STOP)


def test_samples_are_in_their_own_order_whichever_ends_first() -> None:
    for order in itertools.permutations(range(3)):
        collector, row = OutputCollector(), asked(4, 3)
        assert collector.begin(PlannedRequest(row)).samples == (0, 1, 2)
        outputs = [said(2 - sample, str(sample)) for sample in range(3)]
        answers: list[Completion] = []
        for number, place in enumerate(order):
            found, more = collector.collect(row, outputs[place], num_cached_tokens=2)
            assert (len(found), more) == (int(number == 2), None)
            answers += found
        assert answers == [Completion(row, tuple(outputs[::-1]), 2)]


def test_a_vote_draws_on_behind_its_samples_until_it_is_decided() -> None:
    votes = ["a", "b", "b", "a", "a"]
    for reverse in (False, True):
        collector, row = OutputCollector(), asked(0, 5, "[ab]")
        planned = collector.begin(PlannedRequest(row))
        drawn: list[int] = []
        answers: list[Completion] = []
        while not answers:
            drawn += planned.samples
            for left, sample in enumerate(sorted(planned.samples, reverse=reverse), start=1):
                found, more = collector.collect(row, said(sample, votes[sample]), len(drawn))
                is_last = left == len(planned.samples)
                assert is_last or not (found or more)
                answers += found
            assert bool(answers) != bool(more)
            planned = more or planned
        [answer] = answers
        assert drawn == [0, 1, 2, 3, 4]  # "a" wins by the last one alone
        assert [output.index for output in answer.outputs] == drawn
        assert answer.vote is not None
        assert (answer.vote.winner, answer.vote.counts) == ("a", {"a": 3, "b": 2})
        assert answer.num_cached_tokens == 3  # of the samples that were drawn first


def test_a_vote_that_is_decided_early_gives_the_samples_that_decided_it() -> None:
    collector, row = OutputCollector(), asked(0, 4, "[ab]")
    planned = collector.begin(PlannedRequest(row))
    assert planned.samples == (0, 1)  # of two alike the first wins ties
    collector.collect(row, said(1, "a"), 0)
    [answer], more = collector.collect(row, said(0, "a"), 0)
    assert more is None
    assert [output.index for output in answer.outputs] == [0, 1]


def test_a_tie_is_decided_by_the_sample_that_voted_first_not_by_the_one_that_ended_first() -> None:
    votes = ["a", "b", "a", "b"]
    collector, row = OutputCollector(), asked(0, 4, "[ab]")
    planned = collector.begin(PlannedRequest(row))
    assert planned.samples == (0, 1)
    collector.collect(row, said(1, "b"), 0)
    _, more = collector.collect(row, said(0, "a"), 0)
    assert more is not None
    assert more.samples == (2,)
    [answer], more = collector.collect(row, said(2, votes[2]), 0)  # "b" could only draw level
    assert more is None
    assert len(answer.outputs) == 3


def test_duplicates_with_votes_have_the_samples_that_decide_their_own() -> None:
    greedy = [
        Request(index, PROMPT, SamplingParams(n=n, vote=vote))
        for index, (n, vote) in enumerate([(1, None), (5, "[ab]"), (3, None)])
    ]
    collector = OutputCollector()
    collector.expect({0: greedy})
    collector.begin(PlannedRequest(greedy[0]))
    answers, _ = collector.collect(greedy[0], said(0, "a"), 1)
    assert [len(each.outputs) for each in answers] == [1, 3, 3]
    assert [each.vote and each.vote.drawn for each in answers] == [None, 3, None]


def test_a_row_that_fails_gives_no_sample() -> None:
    collector, row, other = OutputCollector(), asked(0, 3), asked(1, 1)
    for each in (row, other):
        collector.begin(PlannedRequest(each))
    collector.collect(row, said(1, "x"), 0)
    error = RowError("nan_logits", "no token")
    assert list(collector.fail(row, error)) == [Completion(row, error=error)]
    assert collector.collect(other, said(0, "y"), 0)[0] == (Completion(other, (said(0, "y"),)),)
