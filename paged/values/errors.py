"""Types of errors, and names of options in their messages.

Every message says what happened, where, and what to do.

PagedrunError
├── UsageError        the command, a flag or a file name is wrong          (exit status 2)
│   └── ModelError    the model folder cannot be used                      (exit status 2)
├── RowError          one input row cannot be answered; the run continues  (exit status 3)
└── EngineError       the engine cannot continue; undone rows stay undone  (exit status 1)
    └── EngineStalled it continues without progress                        (exit status 1)

A message holds the name of an option between marks, set by `option`. The code that shows the
message spells it: `as_argument` gives `max_model_len`, `as_flag` gives `--max-model-len`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import TypedDict

Spell = Callable[[str], str]
"""Spells an option: `max_model_len`, or `prefix_caching=False` for one that is turned off."""


class PagedrunError(Exception):
    """Base of every error that pagedrun raises on purpose.

    A message names options by `option`; `str` shows them as arguments. `field` is the
    option that is wrong, if one is: unless it is given, the first that the message names.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field or first_option(message)

    def __str__(self) -> str:
        return self.shown(as_argument)

    @property
    def marked(self) -> str:
        """The message with its options marked, for use in another message."""
        return str(self.args[0])

    def shown(self, spell: Spell) -> str:
        """Return the message with its options spelled by `spell`."""
        return spelled(self.marked, spell)


class UsageError(PagedrunError):
    """The command, a flag or a file is wrong; nothing was run."""


class ModelError(UsageError):
    """The model folder is incomplete, inconsistent, or of a kind that is not supported."""


class EngineError(PagedrunError):
    """The engine cannot continue; rows not yet written are undone."""


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


def as_argument(name: str) -> str:
    """Spell an option as an argument in Python."""
    return name


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


_OPTION = re.compile("\x02([a-z0-9_]+(?:=False)?)\x03")
_OFF = "=False"


def option(name: str) -> str:
    """Return the mark of option `name`, a configuration field, for a message."""
    return f"\x02{name}\x03"


def turned_off(name: str) -> str:
    """Return the mark of a switch that is turned off, for a message."""
    return option(f"{name}{_OFF}")


def spelled(message: str, spell: Spell) -> str:
    """Return a message with its marked options spelled by `spell`."""
    return _OPTION.sub(lambda found: spell(found[1]), message)


def first_option(message: str) -> str | None:
    """Return the first option in a message, None without one."""
    found = _OPTION.search(message)
    return None if found is None else found[1].removesuffix(_OFF)


def as_flag(name: str) -> str:
    """Spell an option as a flag of the command line."""
    flag = name.removesuffix(_OFF).replace("_", "-")
    return f"--no-{flag}" if name.endswith(_OFF) else f"--{flag}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean …?" with the nearest of `names`, nothing if none is near."""
    near = get_close_matches(name.lower().replace("-", "_"), sorted(names), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


_SHOWN = 4


def listed(names: Iterable[str]) -> str:
    """Return the first few names and how many more there are."""
    found = [ascii(name)[1:-1][:120] for name in names]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
