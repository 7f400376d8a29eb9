"""What can go wrong, as types. Every message says what happened, where, and the way out.

PagedrunError
├── UsageError        the command, a flag or a file name is wrong          (exit status 2)
│   └── ModelError    the model folder cannot be used                      (exit status 2)
├── RowError          one input row cannot be answered; the run goes on    (exit status 3)
└── EngineError       the engine cannot go on; undone rows stay undone     (exit status 1)
    └── EngineStalled it goes on, but gets nowhere                         (exit status 1)
"""

from collections.abc import Mapping
from typing import TypedDict

from pagedrun.paged.values.option_names import Spell, as_argument, first_option, spelled


class PagedrunError(Exception):
    """Base of every error that pagedrun raises on purpose.

    A message names options by `option_names.option`; `str` shows them as arguments. `field` is the
    option that is wrong, if one is: unless it is given, the first that the message names.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field or first_option(message)

    def __str__(self) -> str:
        return self.shown(as_argument)

    @property
    def marked(self) -> str:
        """The message with its options marked, for another message to take in."""
        return str(self.args[0])

    def shown(self, spell: Spell) -> str:
        """Return the message with its options spelled by `spell`."""
        return spelled(self.marked, spell)


class UsageError(PagedrunError):
    """The command, a flag or a file is wrong; nothing was run."""


class ModelError(UsageError):
    """The model folder is incomplete, inconsistent, or of a kind that is not supported."""


class EngineError(PagedrunError):
    """The engine cannot go on. Rows not yet written are not done."""


class EngineStalled(EngineError):
    """The engine makes no progress. `state` is what JSON can hold of it, without prompt text."""

    def __init__(self, message: str, state: Mapping[str, object]) -> None:
        super().__init__(message)
        self.state = state


class WrittenError(TypedDict):
    """The object under `error` in an output row."""

    code: str
    message: str
    param: str | None
    line: int | None


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
        cut = message.encode("utf-8", "replace")[: self.MAX_MESSAGE]  # marks are as long as dashes
        super().__init__(cut.decode("utf-8", "ignore"), field=param)
        self.code = code
        self.param = param
        self.line = line

    def __reduce__(self) -> tuple[object, ...]:
        return _row_error, (self.code, self.marked, self.param, self.line)

    @property
    def message(self) -> str:
        """The message, with options as arguments."""
        return str(self)

    def to_dict(self, spell: Spell = as_argument) -> WrittenError:
        """Return the object under `error` in an output row, its options spelled by `spell`."""
        return {
            "code": self.code,
            "message": self.shown(spell),
            "param": self.param,
            "line": self.line,
        }


def _row_error(code: str, message: str, param: str | None, line: int | None) -> RowError:
    """Return an error that was pickled."""
    return RowError(code, message, param=param, line=line)
