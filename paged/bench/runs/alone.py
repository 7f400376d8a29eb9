"""Alone: rows that read their whole context for themselves, though they share it.

`--no-prefix-once` is not that. So that it gives the same bytes, it does the matrix products of
shared reading for one row at a time, which is several times slower than the kernel of rows that
have nothing to share. What reading once is worth must be measured against that kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class SharingSwitch:
    """A kernel backend in which attention over shared prefixes can be switched off.

    Give `kernels` to an engine in place of the backend. While `alone` holds, `prefix_attention`
    answers that no row has a prefix behind it, and so `decode_attention` reads all of it.
    """

    def __init__(self, backend: ModuleType) -> None:
        self._is_off = False
        self.kernels = ModuleType(f"{backend.__name__}.switched")
        vars(self.kernels).update({name: getattr(backend, name) for name in backend.__all__})
        vars(self.kernels).update(__all__=backend.__all__, prefix_attention=self._prefix_attention)
        self._shared = backend.prefix_attention

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let every row read for itself until the context ends."""
        self._is_off = True
        try:
            yield
        finally:
            self._is_off = False

    def _prefix_attention(self, *args: Any, **kwargs: Any) -> Any:
        return None if self._is_off else self._shared(*args, **kwargs)
