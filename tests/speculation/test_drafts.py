"""Sources of drafts: the sequence itself, answers of other rows, an earlier answer."""

import pytest

from pagedrun.paged.speculation.drafts import (
    EarlierAnswer,
    OtherAnswers,
    PromptLookup,
    RunningAnswer,
)


def test_a_prompt_is_quoted() -> None:
    drafter = PromptLookup([5, 6, 7, 8, 9])
    drafter.append([1, 5, 6])
    assert drafter.propose(4) is None  # two tokens only
    drafter.append([7])
    proposal = drafter.propose(4)
    assert proposal is not None
    assert (proposal.tokens, proposal.num_matched) == ([8, 9, 1, 5], 3)


@pytest.mark.parametrize("is_finished", [True, False])
def test_another_answer_is_followed_finished_or_running(is_finished: bool) -> None:
    answers = OtherAnswers(1000)
    if is_finished:
        answers.add([1, 2, 3, 4, 5, 6])
    else:
        RunningAnswer(answers).append([1, 2, 3, 4, 5, 6])
    drafter = RunningAnswer(answers)
    drafter.append([2, 3, 4])
    proposal = drafter.propose(9)
    assert proposal is not None
    assert proposal.tokens == [5, 6]


def test_an_index_of_answers_keeps_the_latest() -> None:
    answers = OtherAnswers(100)
    running = RunningAnswer(answers)
    for number in range(50):
        running.append([3 * number])
        answers.add(list(range(1000 * number, 1000 * number + 10)))
        assert answers.num_tokens <= 150  # half of them wait to be entered
    latest, oldest = RunningAnswer(answers), RunningAnswer(answers)
    latest.append([49000, 49001, 49002])
    oldest.append([0, 1, 2])
    proposal = latest.propose(9)
    assert proposal is not None
    assert proposal.tokens == list(range(49003, 49010))
    assert oldest.propose(9) is None


def test_answers_that_wait_for_the_index_are_bounded() -> None:
    """In a run whose steps have no drafts nothing enters them: the latest are kept."""
    answers = OtherAnswers(20)
    for first in range(0, 200, 4):
        answers.add([*range(first, first + 4)])
        assert 4 <= answers.num_tokens <= 10
    for known, expected in (([196, 197, 198], [199]), ([0, 1, 2], None)):
        running = RunningAnswer(answers)
        running.append(known)
        proposal = running.propose(2)
        assert (proposal and proposal.tokens) == expected


def test_an_earlier_answer_is_followed_from_its_first_token_and_after_a_change() -> None:
    drafter = EarlierAnswer([5, 6, 7, 8, 9])
    drafter.append([4])
    assert drafter.propose(3) is None
    drafter = EarlierAnswer([5, 6, 7, 8, 9])
    drafter.append([5])
    first = drafter.propose(2)
    drafter.append([1, 7, 8])
    later = drafter.propose(2)
    assert first is not None
    assert later is not None
    assert (first.tokens, later.tokens) == ([6, 7], [9])
