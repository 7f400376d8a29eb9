"""Triton's interpreter, without what it does again and again.

Before a kernel runs, the interpreter puts its own functions where those of `triton.language` are,
and takes them away behind it. It puts them there once more at every call from a kernel to another
`@triton.jit` function, `tl.sum` included, and searches all of the language for that: a millisecond
each, thousands of times in a test, in which nothing is computed.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest


def patch_language_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a launch put the interpreter's functions in place once. It computes what it did."""
    from triton.runtime import interpreter

    monkeypatch.setattr(interpreter, "_patch_lang", LanguagePatch(interpreter._patch_lang))


class LanguagePatch:
    """Stands in for the interpreter's `_patch_lang`, for the scope that it returns as well.

    A launch and the calls inside it share what is in place; the end of the launch restores it all.
    """

    def __init__(self, patch: Callable[[Any], Any]) -> None:
        self._patch = patch
        self._scopes: list[Any] = []
        self._in_place: set[str] = set()

    def __call__(self, function: Any) -> "LanguagePatch":
        modules = language_modules(function)
        if not modules <= self._in_place:
            self._scopes.append(self._patch(function))
            self._in_place |= modules
        return self

    def restore(self) -> None:
        while self._scopes:
            self._scopes.pop().restore()
        self._in_place.clear()


@cache
def language_modules(function: Any) -> frozenset[str]:
    """Return which of the two modules that are patched a function's source can name."""
    from triton import language

    modules = (language, language.core)
    visible = [value for value in function.__globals__.values() if type(value) is type(language)]
    return frozenset(each.__name__ for each in modules if any(each is one for one in visible))
