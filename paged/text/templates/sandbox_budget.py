"""Budget of a rendering: work and memory, charged before they are taken.

Both are counted and not timed or measured, so that a template fails on every machine or on none. A
unit of work is about 0.1 µs: a name that is read, an item that is visited, 32 characters that are
looked at. Memory is the sum of all values made, freed or not: an upper bound of what is held at any
moment.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from jinja2.runtime import Undefined

MAX_WORK = 50_000_000
MAX_MEMORY = 2**27  # bytes
MAX_BITS = 64  # of a number that a template computes
MAX_DEPTH = 200  # of values that are printed, compared or written as JSON

_OBJECT = 64  # bytes of a small object
_ITEM = 128  # bytes of an item made while iterating, with its place in a list
_CHARS = 5  # logarithm of the characters looked at in a unit of work
# Of a text within a printed list: an ASCII character becomes up to 4 (`\x00`), another one 10.
_ASCII_CHARS, _WIDE_CHARS = 4, 10

VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_LISTS: tuple[Any, ...] = (list, tuple, *VIEWS)
SCALARS = (str, int, float, type(None), Undefined)  # bool is an int


class Weight(NamedTuple):
    """Upper bounds of a nested value, shared parts counted each time.

    size: bytes of its text. items: values in it. depth: levels of nesting.
    """

    size: int
    items: int
    depth: int


class Budget:
    """Work and memory left to a rendering; `OverflowError` when one of them is spent."""

    __slots__ = ("_max_memory", "_max_work", "memory", "work")

    def __init__(self, max_work: int = MAX_WORK, max_memory: int = MAX_MEMORY) -> None:
        self._max_work = max_work
        self._max_memory = max_memory
        self.begin()

    def begin(self) -> None:
        """Begin a rendering with the whole budget."""
        self.work = self._max_work
        self.memory = self._max_memory

    def spend(self, work: int) -> None:
        """Take units of work."""
        self.work -= work
        if self.work < 0:
            raise OverflowError(f"the template takes more than {self._max_work:,} units of work")

    def keep(self, size: int) -> None:
        """Take bytes of memory."""
        self.memory -= size
        if self.memory < 0:
            raise self._too_large()

    def need(self, size: int) -> None:
        """Require that bytes of memory are left; they are taken by `kept`."""
        if size > self.memory:
            raise self._too_large()

    def read(self, num_chars: int) -> None:
        """Take the work of looking at characters once."""
        self.spend(num_chars >> _CHARS)

    def kept(self, value: Any) -> Any:
        """Take the memory of a new value, without that of its items, and return it.

        A number of more than 64 bits is refused.
        """
        if isinstance(value, str):
            self.keep(_OBJECT + size_of(value))
        elif isinstance(value, list | tuple):
            self.keep(_OBJECT + 8 * len(value))
        elif isinstance(value, int):
            require_bits(value)
        return value

    def kept_texts(self, texts: Any) -> Any:
        """Take the memory of new texts in a new list or tuple, and return it."""
        self.keep(_OBJECT + sum(_OBJECT + 8 + size_of(text) for text in texts))
        return texts

    def weigh(self, value: Any) -> Weight:
        """Return the weight of a value, which must fit the memory left; takes the work of a visit.

        Shared parts are visited each time, so that this ends at a limit for values whose text, or
        comparison, would not end.
        """
        num_chars, is_wide, items, depth = 0, False, 0, 0
        level = [value]
        while level:
            depth += 1
            if depth > MAX_DEPTH:
                raise OverflowError(f"a value has more than {MAX_DEPTH} levels")
            self.spend(4 * len(level))
            items += len(level)
            below: list[Any] = []
            for each in level:
                num_chars += _OBJECT
                if isinstance(each, str):
                    self.read(len(each))
                    is_wide = is_wide or not each.isascii()
                    num_chars += len(each) * (_ASCII_CHARS if each.isascii() else _WIDE_CHARS)
                elif isinstance(each, dict):
                    self._open(num_chars, 2 * len(each))
                    below.extend(each)
                    below.extend(each.values())
                elif isinstance(each, _LISTS):
                    self._open(num_chars, len(each))
                    below.extend(each)
                elif isinstance(each, int):
                    num_chars += each.bit_length() // 3
            level = below
        size = num_chars * (4 if is_wide else 1)
        self.need(size)
        return Weight(size, items, depth)

    def _open(self, num_chars: int, num_items: int) -> None:
        """Check the budget before the items of a container are listed."""
        self.spend(num_items)
        self.need(num_chars + _ITEM * num_items)

    def _too_large(self) -> OverflowError:
        size = self._max_memory >> 20
        return OverflowError(f"the template makes more than {size} MiB of text and lists")

    def compared(self, value: Any) -> Any:
        """Take the work of comparing a value once, and return it."""
        if type(value) is str:
            self.spend(len(value) >> _CHARS)
        elif not isinstance(value, SCALARS):
            self.weigh(value)
        return value

    def searched(self, value: Any) -> Any:
        """Take the work of an `in` in a value, and return what it is searched in."""
        if isinstance(value, str):
            self.read(8 * len(value))
        elif isinstance(value, range):
            self.spend(len(value))
        elif isinstance(value, list | tuple):
            self.weigh(value)
        elif not isinstance(value, (dict, *SCALARS)):
            return (self.compared(item) for item in self.counted(value))
        return value

    def counted(self, values: Any, work: int = 4) -> Any:
        """Return an iterable of the same items, each of which takes `work`, and memory.

        An empty or undefined one is returned as it is: filters look at that.
        """
        if isinstance(values, Undefined) or not values:
            return values
        is_there = isinstance(values, (list, tuple, dict, *VIEWS[:2]))
        return self._items(iter(values), work, 8 if is_there else _ITEM)

    def _items(self, values: Iterator[Any], work: int, size: int) -> Iterator[Any]:
        for value in values:
            self.spend(work)
            self.keep(size)
            yield value

    def listed(self, values: Any) -> list[Any]:
        """Return the items of an iterable in a new list."""
        return list(self.counted(values))


def size_of(text: str, factor: int = 1) -> int:
    """Return the most bytes of the characters of a text, or of `factor` times as many."""
    return factor * len(text) * (1 if text.isascii() else 4)


def require_key(value: Any) -> Any:
    """Return the key of a mapping or an index; raises `TypeError` for anything but a scalar.

    The hash of nested tuples takes time exponential in their depth, and overflows the stack.
    """
    if not isinstance(value, SCALARS):
        raise TypeError(f"a key must be a text or a number, not {type(value).__name__}")
    return value


def require_bits(number: int) -> None:
    """Raise `OverflowError` for a number that is too large to compute with."""
    if number.bit_length() > MAX_BITS:
        raise OverflowError(f"a number has more than {MAX_BITS} bits")
