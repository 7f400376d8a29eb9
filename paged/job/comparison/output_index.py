"""OutputIndex: where each row of an output is, so that files larger than memory can be compared."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import TypedDict

from pagedrun.paged.job.comparison.compared_answer import ComparedAnswer
from pagedrun.paged.values.errors import UsageError


class OutputFigures(TypedDict):
    """What is told of one output. `expected` rows name an answer, which `correct` of them have."""

    path: str
    rows: int
    failed: int
    finish_reasons: dict[str, int]
    completion_tokens: int
    expected: int
    correct: int
    torn: bool


class OutputIndex:
    """The rows of an output by index and, where no two rows share one, by id."""

    def __init__(self, path: Path) -> None:
        """Read the whole file once. Raises `UsageError` if it cannot be, or is no output."""
        self.path = path
        self.by_index: dict[str, int] = {}
        self.by_id: dict[str, int] = {}
        self.has_unique_ids = True
        self._reasons: Counter[str] = Counter()
        self._num_failed = self._num_tokens = self._num_expected = self._num_correct = 0
        self._is_torn = False
        try:
            self._file = path.open("rb")
            offset = 0
            for number, line in enumerate(self._file, start=1):
                self._is_torn = not line.endswith(b"\n")
                if not self._is_torn:
                    self._take(number, line, offset)
                offset += len(line)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"{path} cannot be read ({reason})") from error

    def read(self, offset: int) -> bytes:
        """Return the line at an offset."""
        self._file.seek(offset)
        return self._file.readline()

    def figures(self) -> OutputFigures:
        """Return what there is to tell of the whole output."""
        return {
            "path": os.fsencode(self.path).decode("utf-8", "replace"),
            "rows": len(self.by_index),
            "failed": self._num_failed,
            "finish_reasons": dict(sorted(self._reasons.items())),
            "completion_tokens": self._num_tokens,
            "expected": self._num_expected,
            "correct": self._num_correct,
            "torn": self._is_torn,
        }

    def _take(self, number: int, line: bytes, offset: int) -> None:
        answer = ComparedAnswer.parse(line)
        if answer is None:
            raise UsageError(
                f"{self.path}, line {number} is not an output row; name two outputs of pagedrun "
                "generate"
            )
        index = str(answer.index)
        if index in self.by_index:
            raise UsageError(
                f"{self.path}, line {number} answers row {index} a second time; it is not the "
                "output of one run"
            )
        self.by_index[index] = offset
        row_id = json.dumps(answer.id)
        self.has_unique_ids = self.has_unique_ids and row_id not in self.by_id
        self.by_id[row_id] = offset
        self._num_failed += answer.error is not None
        self._num_tokens += answer.num_tokens
        self._reasons.update(answer.finish_reasons)
        self._num_expected += answer.is_correct is not None
        self._num_correct += answer.is_correct is True
