"""Arguments in Python: an unknown one is refused with the name that was meant."""

import re
from collections.abc import Callable, Collection
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.foreign_flags import MISSING, RENAMED
from pagedrun.paged.values.option_names import nearest

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

# vLLM's names in Python for what is no flag.
_RENAMED = {"sampling_params": "params", "use_tqdm": "progress"}
_FLAG = re.compile(r"--([a-z][a-z0-9-]*)")


def refuse_unknown(owner: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise `UsageError` for the first argument of `owner` that is not one of `known`."""
    for name in given:
        if name not in known:
            raise UsageError(_told(owner, name, known), field=name)


def checked(call: Callable[P, R]) -> Callable[P, R]:
    """Return the same function, for which an unknown argument is a `UsageError`."""
    known = frozenset(signature(call).parameters)
    name = call.__qualname__.removesuffix(".__init__")

    @wraps(call)
    def checked_call(*args: P.args, **given: P.kwargs) -> R:
        if not given.keys() <= known:
            refuse_unknown(name, given, [each for each in known if each != "self"])
        return call(*args, **given)

    return checked_call


def checked_class(kind: C) -> C:
    """Return the same class, for which an unknown argument is a `UsageError`."""
    initialize: Callable[..., Any] = kind.__init__  # type: ignore[misc]
    kind.__init__ = checked(initialize)  # type: ignore[misc]
    return kind


def _told(owner: str, name: str, known: Collection[str]) -> str:
    flag = "--" + name.replace("_", "-")
    ours = _RENAMED.get(name) or RENAMED.get(flag, "").removeprefix("--").replace("-", "_")
    if ours in known:
        return f"{owner}: {name} is called {ours} here"
    why = _FLAG.sub(lambda found: found[1].replace("-", "_"), MISSING.get(flag, ""))
    named = {each.replace("-", "_") for each in _FLAG.findall(MISSING.get(flag, ""))}
    if why and named <= {*known}:
        return f"{owner} has no argument {name}: {why}"
    return f"{owner} has no argument {name}{nearest(name, known)}"
