"""Windows: a long input in pieces that fit into memory."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from pagedrun.paged.values.window_size import WindowSize

T = TypeVar("T")


class Windows(Generic[T]):
    """Reads one window after the other from `items`; `is_last` says whether there is another one.

    `num_bytes_read` tells how many bytes the items take that were read so far. One item is read
    ahead of each window, which tells whether there is another. What `items` raises is raised.
    """

    def __init__(
        self, items: Iterable[T], size: WindowSize, num_bytes_read: Callable[[], int]
    ) -> None:
        self._items = iter(items)
        self._size = size
        self._num_bytes_read = num_bytes_read
        self._ahead: list[T] = []
        self.is_last = False

    def read(self) -> list[T]:
        """Return the items of the next window; none if there never were any."""
        begin, size = self._num_bytes_read(), self._size
        window, self._ahead = self._ahead, []
        for item in self._items:
            is_full = len(window) >= size.rows or self._num_bytes_read() - begin > size.num_bytes
            if window and is_full:
                self._ahead = [item]
                return window
            window.append(item)
        self.is_last = True
        return window
