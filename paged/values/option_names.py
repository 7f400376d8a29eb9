"""How messages name an option: as an argument to users of Python, as a flag to those of a shell.

A message holds the option's name between marks, which `option` puts there. Who shows the message
spells it: `as_argument` gives `max_model_len`, `as_flag` `--max-model-len`.
"""

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches

Spell = Callable[[str], str]
"""Spells an option: `max_model_len`, or `prefix_caching=False` for one that is turned off."""

_OPTION = re.compile("\x02([a-z0-9_]+(?:=False)?)\x03")
_OFF = "=False"


def option(name: str) -> str:
    """Return how a message names the option `name`, a field of one of the configurations."""
    return f"\x02{name}\x03"


def turned_off(name: str) -> str:
    """Return how a message names that a switch is turned off."""
    return option(f"{name}{_OFF}")


def spelled(message: str, spell: Spell) -> str:
    """Return a message as people read it, the options in it spelled by `spell`."""
    return _OPTION.sub(lambda found: spell(found[1]), message)


def first_option(message: str) -> str | None:
    """Return the option that a message names first, None if it names none."""
    found = _OPTION.search(message)
    return None if found is None else found[1].removesuffix(_OFF)


def as_argument(name: str) -> str:
    """Spell an option as an argument in Python."""
    return name


def as_flag(name: str) -> str:
    """Spell an option as a flag of the command line."""
    flag = name.removesuffix(_OFF).replace("_", "-")
    return f"--no-{flag}" if name.endswith(_OFF) else f"--{flag}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean …?" with the nearest of `names`, nothing if none is near."""
    near = get_close_matches(name.lower().replace("-", "_"), sorted(names), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
