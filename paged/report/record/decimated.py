"""Decimated: an endless series of numbered items in bounded memory."""

from typing import Generic, TypeVar

Item = TypeVar("Item")


class Decimated(Generic[Item]):
    """Keeps every k-th item; when more than `capacity` are kept, every other one is dropped and k
    doubles, so that a week-long run leaves as many as a short one, evenly spaced."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._stride = 1
        self._numbers: list[int] = []
        self._items: list[Item] = []

    @property
    def items(self) -> tuple[Item, ...]:
        """The items kept so far, in order."""
        return tuple(self._items)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(self._numbers)

    @property
    def stride(self) -> int:
        """Numbers from one kept item to the next."""
        return self._stride

    def wants(self, number: int) -> bool:
        """Return whether the item of this number would be kept: if not, it need not be made."""
        return number % self._stride == 0

    def add(self, number: int, item: Item) -> None:
        """Keep an item if its number is due; numbers rise."""
        if not self.wants(number):
            return
        self._numbers.append(number)
        self._items.append(item)
        if len(self._items) > self._capacity:
            self._stride *= 2
            kept = [place for place, each in enumerate(self._numbers) if self.wants(each)]
            self._numbers = [self._numbers[place] for place in kept]
            self._items = [self._items[place] for place in kept]
