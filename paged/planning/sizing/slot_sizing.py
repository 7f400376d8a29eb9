"""SlotSizer: how many slots the states of recurrent layers get, and what is left for blocks."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.sizing.memory import MemoryBudget
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.option_names import option
from pagedrun.paged.values.request import Completion, Request

# Of the memory for states and blocks together, and of the space to swap out to.
MAX_SHARE = 0.5
# Kept states for which there is memory before it is known how deep the tree of prefixes is.
MAX_LEVELS = 16
# One that a chunk reads, and one that it writes.
LEAST_SLOTS = 2


@dataclass(frozen=True, slots=True)
class SlotSizes:
    """Slots in the device's memory, and those on the host to swap out to.

    Where they `are_opaque`, objects of a library, a prompt must not be cut: see `StatePool`.
    """

    num_slots: int
    num_host_slots: int
    bytes_per_slot: int
    are_opaque: bool = False

    @property
    def host_bytes(self) -> int:
        """Bytes of those on the host."""
        return self.num_host_slots * self.bytes_per_slot


def longest_row(requests: Iterable[Request | Completion], max_model_len: int) -> int:
    """Return the most tokens that one of the rows may have, prompt and answer together."""
    lengths = (
        min(each.max_num_tokens + 1, max_model_len)
        for each in requests
        if isinstance(each, Request)
    )
    return max(lengths, default=1)


class SlotSizer:
    """Sizes them for a model that keeps `bytes_per_slot` of each sequence, 0 if it keeps nothing.

    Where they `are_opaque`, a library's caches, nothing else is kept of a sequence: they may have
    all of the memory that there is for keys and values.

    A sequence that runs has a slot. While samples or beams fork, each of them reads the slot of
    their parent and writes one of its own; and for each level of the tree of prefixes one is kept.
    """

    def __init__(
        self,
        config: EngineConfig,
        bytes_per_slot: int,
        budget: MemoryBudget,
        *,
        are_opaque: bool = False,
    ) -> None:
        """Raise `UsageError` if `budget` has no room for one sequence."""
        self._are_opaque = are_opaque
        self._seats = config.max_num_seqs
        self._bytes_per_slot = bytes_per_slot
        self._budget = budget
        self._most = 0
        self._num_host_slots = 0
        if not bytes_per_slot:
            return
        memory = int(budget.pool * MAX_SHARE)
        if are_opaque:
            memory = min(config.kv_cache_memory_bytes or budget.pool, budget.available)
        room = memory // bytes_per_slot
        self._most = min(self._seats + self._seats // 2 + MAX_LEVELS, room)
        if self._most < LEAST_SLOTS and are_opaque:
            raise UsageError(
                "no memory for a sequence's keys, values and states: two sequences of full "
                f"length take {LEAST_SLOTS * bytes_per_slot} bytes, but only {memory} are free; "
                f"pass a smaller {option('max_model_len')} or {option('max_tokens')}, or free "
                "some memory"
            )
        if self._most < LEAST_SLOTS:
            raise UsageError(
                f"no memory for the states of recurrent layers: one sequence takes "
                f"{LEAST_SLOTS * bytes_per_slot} bytes, and half of the {budget.pool} that are "
                "free for states and blocks; free some memory"
            )
        swapped = int(config.swap_space_bytes * MAX_SHARE) // bytes_per_slot
        self._num_host_slots = min(self._seats, swapped)

    @property
    def max_beam_width(self) -> int | None:
        """The most beams that a row can have, None if nothing forbids any: all of them take a step
        together, and each may need a slot to read and one to write."""
        return self._most // 2 if self._bytes_per_slot else None

    @property
    def rest(self) -> MemoryBudget:
        """What is left for blocks."""
        taken = self._most * self._bytes_per_slot
        return replace(
            self._budget,
            available=self._budget.available - taken,
            pool=self._budget.pool - taken,
        )

    def sizes(self, first: Plan, *, is_whole: bool) -> SlotSizes | None:
        """Return them for a file that begins with the window `first`, None if there are no states.

        What later windows need is not known: unless the first is the whole file, they may need all.
        """
        if not self._bytes_per_slot:
            return None
        num_slots = self._most
        if is_whole:
            num_sequences = first.num_samples
            widest = int(num_sequences.max(initial=1))
            seats = min(self._seats, int(num_sequences.sum()))
            num_forking = max(seats // 2, widest) if widest > 1 else 0
            depth = 0 if first.states is None else first.states.depth
            num_slots = max(seats, widest) + num_forking + depth + 1
        return self._sized(num_slots)

    def most(self) -> SlotSizes | None:
        """Return the most that there can be, None if there are no states."""
        return self._sized(self._most) if self._bytes_per_slot else None

    def _sized(self, num_slots: int) -> SlotSizes:
        num_slots = max(min(num_slots, self._most), LEAST_SLOTS)
        return SlotSizes(
            num_slots, self._num_host_slots, self._bytes_per_slot, are_opaque=self._are_opaque
        )
