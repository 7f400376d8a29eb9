"""Drafts of a step followed through the answers, draw by draw, without a model."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from pagedrun.paged.scheduling.step_input import Drafted
from pagedrun.paged.speculation.verification import Verification

FIRST_DRAW = 4


class Answers:
    """Table of the answers of two sequences, which notes the drafts whose keys are kept."""

    def __init__(self, *answers: list[int]) -> None:
        self.table: Any = self
        self.uid = np.array([70, 71])
        self.outputs = np.zeros((2, 8), np.int64)
        self.num_output_tokens = np.array([len(each) for each in answers])
        for row, each in enumerate(answers):
            self.outputs[row, : len(each)] = each
        self.kept = [0, 0]

    def accept(self, row_index: int, count: int) -> None:
        self.kept[row_index] += count

    def append_outputs(self, row_indices: Any, tokens: Any) -> None:
        self.outputs[row_indices, self.num_output_tokens[row_indices]] = tokens
        self.num_output_tokens[row_indices] += 1


def verified(answers: Answers, *draws: list[int]) -> tuple[Verification, list[list[int]]]:
    """Return the verification of drafts 5, 6, 7 of the first sequence and 8 of the second, both
    behind one token, and the draws that were due; draws: the tokens that they gave."""
    drafts = Drafted(0, 70, 1, (5, 6, 7), FIRST_DRAW), Drafted(1, 71, 1, (8,), FIRST_DRAW + 3)
    scheduler: Any = SimpleNamespace(table=answers, accept=answers.accept)
    verification, due = Verification(drafts, scheduler), []
    for tokens in draws:
        due.append(verification.due().tolist())
        verification.append(np.array(tokens, np.int64))
    due.append(verification.due().tolist())
    return verification, due


def test_right_drafts_are_followed_up_to_the_first_wrong_one() -> None:
    answers = Answers([1, 5], [1, 9])
    verification, due = verified(answers, [6], [3])
    assert due == [[FIRST_DRAW], [FIRST_DRAW + 1], []]
    assert answers.outputs[0, :4].tolist() == [1, 5, 6, 3]
    assert [each.num_right for each in verification.all] == [2, 0]
    assert answers.kept == [2, 0]  # keys of the last token are those of no draft


def test_behind_the_last_draft_a_token_is_drawn_too() -> None:
    answers = Answers([1, 5], [1, 8])
    verification, due = verified(answers, [6, 2], [7], [4])
    assert due[:3] == [[FIRST_DRAW, FIRST_DRAW + 3], [FIRST_DRAW + 1], [FIRST_DRAW + 2]]
    assert [each.num_right for each in verification.all] == [3, 1]
    assert answers.kept == [3, 1]
    assert answers.num_output_tokens.tolist() == [5, 3]


def test_a_draw_without_a_token_is_repeated_from_the_draft_before_it() -> None:
    """The keys of the newest token are written again by the step that draws behind it."""
    answers = Answers([1, 5], [1, 8])
    _, due = verified(answers, [6, -1], [-1])
    assert due == [[FIRST_DRAW, FIRST_DRAW + 3], [FIRST_DRAW + 1], []]
    assert answers.num_output_tokens.tolist() == [3, 2]
    assert answers.kept == [1, 0]


def test_drafts_of_a_sequence_that_has_ended_are_given_up() -> None:
    """Its place in the table may be another's, whose answer goes on as the draft says."""
    answers = Answers([1, 5], [1, 8])
    answers.uid[0] = 99
    _, due = verified(answers, [2])
    assert due == [[FIRST_DRAW + 3], []]
    assert answers.kept == [0, 1]
