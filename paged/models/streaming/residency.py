"""Residency: which packed weights stay in memory, and where the others are read to.

A pass uses the entries of a model (its layers, then its head) in one order, and the next pass
begins again. Pinned entries stay in memory. Streamed ones are read ahead into a ring of slots, each
at a fixed place, so that the layers over them are built once. Pinned entries are spread evenly:
reading goes on while they are computed. Imports no torch; `plan` uses it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pagedrun.paged.values.errors import UsageError, option

HEAD = "head"
PAGE_BYTES = 4096  # entries begin and end at pages, as direct reads require
MOST_SLOTS, LEAST_SLOTS = 3, 2  # one is computed on while the others are read
HOST_SHARE = 0.6  # of the host's free memory, for entries that are streamed to a device
_LARGE = 1.3  # times the median size


def entry_names(num_layers: int, *, has_head: bool = True) -> list[str]:
    """Return the names of the entries of a model, in the order of a pass."""
    layers = [f"layer-{number:04d}" for number in range(num_layers)]
    return [*layers, HEAD] if has_head else layers


def too_little_memory(num_bytes: int, sizes: Sequence[int]) -> UsageError:
    """Return the error for `num_bytes` of memory, too few for a pass over these entries."""
    least = -(-Residency.least_bytes(sizes) // 2**20)
    return UsageError(
        f"{option('weights_memory')} {num_bytes} bytes cannot hold the layers that are read while "
        f"others are computed; this model needs at least {least} MiB"
    )


@dataclass(frozen=True, slots=True)
class Residency:
    """Sizes of entries in bytes, in the order of a pass, and the place of each in the ring.

    places: first byte in the ring, None for a pinned entry. ring_bytes: size of the ring.
    """

    sizes: tuple[int, ...]
    places: tuple[int | None, ...]
    ring_bytes: int

    @classmethod
    def within(cls, sizes: Sequence[int], num_bytes: int) -> "Residency | None":
        """Return the residency with the fewest streamed bytes; None if `num_bytes` are too few."""
        if sum(sizes) <= num_bytes:
            return cls(tuple(sizes), (None,) * len(sizes), 0)
        large = _large(sizes)
        others = [index for index in range(len(sizes)) if index not in large]
        slot = max(sizes[index] for index in others)
        room = num_bytes - sum(sizes[index] for index in large)
        num_slots = min(room // slot, MOST_SLOTS, len(others))
        if large and num_slots < min(LEAST_SLOTS, len(others)):
            return cls._without_large(tuple(sizes), large, slot, num_bytes)
        if num_slots < min(LEAST_SLOTS, len(others)):
            return None
        streamed = _streamed(sizes, others, room - num_slots * slot)
        return cls._of(tuple(sizes), streamed, slot, num_slots)

    @classmethod
    def least_bytes(cls, sizes: Sequence[int]) -> int:
        """Return the least memory with which these entries can be streamed."""
        large = _large(sizes)
        others = [size for index, size in enumerate(sizes) if index not in large]
        return max(max(sizes), min(LEAST_SLOTS, len(others)) * max(others))

    @classmethod
    def on_host(cls, sizes: Sequence[int], available: int) -> "Residency":
        """Return the residency, in host memory, of entries that are streamed to a device.

        available: free bytes of the host. A share of them is taken, since locked pages are not
        given back, or as many as the entries need at least.
        """
        if not sizes:
            return cls((), (), 0)
        num_bytes = max(int(HOST_SHARE * available), cls.least_bytes(sizes))
        found = cls.within(sizes, num_bytes)
        assert found is not None, "at least the least bytes"
        return found

    @property
    def pinned_bytes(self) -> int:
        """Bytes of entries that stay in memory."""
        pairs = zip(self.sizes, self.places, strict=True)
        return sum(size for size, place in pairs if place is None)

    @property
    def pass_bytes(self) -> int:
        """Bytes read in each pass: those of entries that share their places with others."""
        return sum(self.sizes[index] for index in range(len(self.sizes)) if self._is_shared(index))

    def _is_shared(self, index: int) -> bool:
        place = self.places[index]
        if place is None:
            return False
        others = zip(self.sizes, self.places, strict=True)
        overlaps = (
            start is not None and start < place + self.sizes[index] and place < start + size
            for size, start in others
        )
        return sum(overlaps) > 1

    @property
    def letters(self) -> str:
        """A letter for each entry, in the order of a pass: p for pinned, s for streamed."""
        return "".join("p" if place is None else "s" for place in self.places)

    @property
    def num_streamed(self) -> int:
        """Number of entries read in each pass."""
        return sum(place is not None for place in self.places)

    @classmethod
    def _of(
        cls, sizes: tuple[int, ...], streamed: Sequence[int], slot: int, num_slots: int
    ) -> "Residency":
        places: list[int | None] = [None] * len(sizes)
        for number, index in enumerate(streamed):
            places[index] = number % num_slots * slot
        if len(streamed) > num_slots > LEAST_SLOTS and len(streamed) % num_slots == 1:
            # Not the slot of the first entry, which is read while the last is computed.
            places[streamed[-1]] = slot
        return cls(sizes, tuple(places), min(num_slots, len(streamed)) * slot)

    @classmethod
    def _without_large(
        cls, sizes: tuple[int, ...], large: set[int], slot: int, num_bytes: int
    ) -> "Residency | None":
        """Return a residency where large entries take the place of the slots, once a pass."""
        least = cls.least_bytes(sizes)
        if num_bytes < least:
            return None
        num_slots = min(least // slot, MOST_SLOTS)
        others = [index for index in range(len(sizes)) if index not in large]
        found = cls._of(sizes, _streamed(sizes, others, num_bytes - least), slot, num_slots)
        places = [0 if index in large else place for index, place in enumerate(found.places)]
        return cls(sizes, tuple(places), least)


@dataclass(slots=True)
class ReadFigures:
    """Reads of streamed entries so far: bytes, entries, and seconds of reading and of waiting."""

    num_bytes: int = 0
    num_entries: int = 0
    read_s: float = 0.0
    wait_s: float = 0.0

    def since(self, begin: "ReadFigures") -> "ReadFigures":
        """Return the reads after `begin`."""
        return ReadFigures(
            self.num_bytes - begin.num_bytes,
            self.num_entries - begin.num_entries,
            self.read_s - begin.read_s,
            self.wait_s - begin.wait_s,
        )


@dataclass(frozen=True, slots=True)
class PassSpeeds:
    """Speeds of a pass on this machine, measured once for a packed model.

    bytes_per_s: of the disk. tokens_per_s: of the products of all layers, None for experts, whose
    work depends on the tokens. copied_per_s: bytes per second to a device with memory of its own,
    None where the host computes.
    """

    bytes_per_s: float
    tokens_per_s: float | None
    copied_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class StreamedWeights:
    """Packed weights of a loaded model: their folder, residency and speeds.

    residency: in the memory of the device that computes. on_host: of the entries that are streamed
    to it, in the memory of the host; None where the host computes. reads: returns those so far.
    begin_step: call with the number of tokens of a step, before its entries are used.
    """

    folder: Path
    residency: Residency
    speeds: PassSpeeds
    reads: Callable[[], ReadFigures]
    begin_step: Callable[[int], None]
    on_host: Residency | None = None

    @property
    def figures(self) -> ReadFigures:
        """Reads so far."""
        return self.reads()


def _large(sizes: Sequence[int]) -> set[int]:
    """Return the indices of large entries, such as a head, which are pinned before layers."""
    limit = _LARGE * median(sizes)
    return {index for index, size in enumerate(sizes) if size > limit}


def _streamed(sizes: Sequence[int], candidates: Sequence[int], room: int) -> list[int]:
    """Return the entries to stream: `room` bytes of pinned ones are spread evenly."""
    for count in range(len(candidates) + 1):
        chosen = _spread(candidates, count)
        pinned = sum(sizes[index] for index in candidates) - sum(sizes[index] for index in chosen)
        if pinned <= room:
            return chosen
    return list(candidates)


def _spread(candidates: Sequence[int], count: int) -> list[int]:
    """Return `count` of the candidates at even distances."""
    total = len(candidates)
    return [
        each
        for number, each in enumerate(candidates)
        if (number + 1) * count // total > number * count // total
    ]
