"""Answers on their way to the driver: of each object the figures, and what is usual not at all.

Pickling looks at a dataclass's fields anew for each object, which for small ones takes longer than
all else; and of a request the driver needs the index alone.
"""

from collections.abc import Iterable
from dataclasses import MISSING, fields
from operator import attrgetter
from typing import Any

from pagedrun.paged.values.request import Completion, FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams

_NO_PARAMS = SamplingParams()
_REASONS = {each.value: each for each in FinishReason}


class _Rest:
    """The fields of a class behind its first ones, all of which have defaults."""

    def __init__(self, kind: type, num_first: int) -> None:
        rest = fields(kind)[num_first:]
        assert all(each.default is not MISSING for each in rest)
        self._values = attrgetter(*(each.name for each in rest))
        self._usual = tuple(each.default for each in rest)

    def of(self, value: object) -> tuple[Any, ...]:
        """Return the values, () where they are the usual ones."""
        found: tuple[Any, ...] = self._values(value)
        return () if found == self._usual else found


_OUTPUT = _Rest(SampleOutput, 4)
_COMPLETION = _Rest(Completion, 2)


def packed_answers(completions: Iterable[Completion]) -> tuple[Any, ...]:
    """Return what `unpacked_answers` takes."""
    return tuple(
        (
            each.request.index,
            tuple(
                (one.index, one.text, one.token_ids, one.finish_reason.value, *_OUTPUT.of(one))
                for one in each.outputs
            ),
            *_COMPLETION.of(each),
        )
        for each in completions
    )


def unpacked_answers(packed: Iterable[tuple[Any, ...]]) -> tuple[Completion, ...]:
    """Return the completions; their requests have the index and nothing else."""
    return tuple(
        Completion(
            Request(index, (), _NO_PARAMS),
            tuple(
                SampleOutput(number, text, token_ids, _REASONS[reason], *others)
                for number, text, token_ids, reason, *others in outputs
            ),
            *rest,
        )
        for index, outputs, *rest in packed
    )
