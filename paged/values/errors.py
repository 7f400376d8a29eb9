"""What can go wrong, as types. Every message says what happened, where, and the way out.

PagedrunError
├── UsageError        the command, a flag or a file name is wrong          (exit status 2)
│   └── ModelError    the model folder cannot be used                      (exit status 2)
├── RowError          one input row cannot be answered; the run goes on    (exit status 3)
└── EngineError       the engine cannot go on; undone rows stay undone     (exit status 1)
    └── EngineStalled it goes on, but gets nowhere                         (exit status 1)
"""

from collections.abc import Mapping
from typing import Any


class PagedrunError(Exception):
    """Base of every error that pagedrun raises on purpose."""


class UsageError(PagedrunError):
    """The command, a flag or a file is wrong; nothing was run."""


class ModelError(UsageError):
    """The model folder is incomplete, inconsistent, or of a kind that is not supported."""


class EngineError(PagedrunError):
    """The engine cannot go on. Rows not yet written are not done."""


class EngineStalled(EngineError):
    """The engine makes no progress. `state` is what JSON can hold of it, without prompt text."""

    def __init__(self, message: str, state: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.state = state


class RowError(PagedrunError):
    """One row cannot be answered.

    `code` is a stable word for scripts, `param` the offending field, `line` the physical input
    line counted from 1. The message never repeats the row itself, is text that UTF-8 can hold,
    and is cut at 1,000 bytes of it.
    """

    MAX_MESSAGE = 1000

    def __init__(
        self, code: str, message: str, *, param: str | None = None, line: int | None = None
    ) -> None:
        self.message = message.encode("utf-8", "replace")[: self.MAX_MESSAGE].decode(
            "utf-8", "ignore"
        )
        super().__init__(self.message)
        self.code = code
        self.param = param
        self.line = line

    def to_dict(self) -> dict[str, str | int | None]:
        """Return the object that stands under `error` in an output row."""
        return {
            "code": self.code,
            "message": self.message,
            "param": self.param,
            "line": self.line,
        }
