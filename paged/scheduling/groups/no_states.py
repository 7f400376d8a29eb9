"""NoStates: what a scheduler does about the states of recurrent layers where there are none."""

from collections.abc import Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.cache.swap_space import SwapSpace
from pagedrun.paged.report.record.state_figures import StateFigures
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import NO_STATE, Int64s
from pagedrun.paged.scheduling.step_builder import StepBuilder
from pagedrun.paged.values.block_key import BlockKey


class StatePool(NamedTuple):
    """Memory of recurrent layers: slots, each with room for the state behind one token.

    With `whole_prompts` it is a library that computes them, whose last bits depend on where a
    prompt is cut: a chunk has all of it, also where a step has more tokens then than it should.
    """

    slots: BlockPool
    swap_space: SwapSpace
    whole_prompts: bool = False

    @classmethod
    def of(cls, num_slots: int, num_host_slots: int, *, whole_prompts: bool = False) -> "StatePool":
        """Return the books of memory that nothing is in yet."""
        return cls(BlockPool(num_slots, block_size=1), SwapSpace(num_host_slots), whole_prompts)


class StateEntry(NamedTuple):
    """Where a sequence goes on: behind `num_tokens` tokens at the most, with the state of a slot.

    `slot` is `NO_STATE` where the state is on the host, is zeros, or is not needed.
    """

    slot: int
    num_tokens: int


class NoStates:
    """What `StateSlots` does, for a model whose layers all read what they need from blocks."""

    has_slots = False

    def end_step(self) -> None:
        """Give back what the scheduled step reads for the last time, and let be found what it
        writes: the next one comes behind it."""

    def chunk_end(self, sequence: Sequence, end: int) -> int:
        """Return where a chunk up to `end` has to end, for a state that is needed again."""
        return end

    def must_wait(self, sequence: Sequence, running: list[Sequence], places: Int64s) -> bool:
        """Return whether a state that a sequence is to begin with is about to be written."""
        return False

    def entry(self, sequence: Sequence, num_stored: int) -> StateEntry | None:
        """Return where a sequence of which so many tokens are stored in blocks can go on; None if
        too few slots are free."""
        return StateEntry(NO_STATE, sequence.num_tokens)

    def take(self, sequence: Sequence, entry: StateEntry, step: StepBuilder) -> None:
        """Give a sequence the state of its entry; what it pinned while it waited goes."""

    def can_load(self, place: int) -> bool:
        """Return whether there is a slot for a state that comes from elsewhere."""
        return False

    def load(self, sequence: Sequence, source: int, num_tokens: int, step: StepBuilder) -> None:
        """Let a sequence begin with a state that the step loads, in place of its entry's."""

    def needs_slot(self, places: Int64s) -> NDArray[np.bool_]:
        """Return which sequences need a new slot for their next chunk, [num_places] bool."""
        return np.zeros(len(places), dtype=np.bool_)

    def num_fit(self, needs: NDArray[np.bool_]) -> int:
        """Return how many of the first sequences can have the slots that they need."""
        return len(needs)

    def reserve(self, place: int) -> bool:
        """Make sure that the next chunk has a slot to write; return False if none is free."""
        return True

    def advance(self, places: Int64s, step: StepBuilder) -> None:
        """Book the chunks that were just added to the step, of these sequences."""

    def publish(self, sequence: Sequence) -> None:
        """Let later rows begin with the state behind a sequence's last chunk, if one wants to."""

    def pin_points(self, sequence: Sequence) -> None:
        """Say where rows behind the one let in last begin on its path."""

    def end_plan(self) -> None:
        """Take note that no later row begins anywhere."""

    def share(self, place: int) -> None:
        """Count a sequence, whose entry is a copy, as a holder of its slot."""

    def release(self, place: int) -> None:
        """Give back what a sequence holds."""

    def retire(self, place: int) -> None:
        """Take back what a sequence has, whose last step has been scheduled."""

    def swap_out(self, place: int, step: StepBuilder) -> bool:
        """Save a sequence's state to the host; return False if that has no room."""
        return True

    def drop_host_slot(self, place: int) -> None:
        """Give back what a sequence has on the host."""

    def pin(self, sequence: Sequence) -> None:
        """Keep the state from which a sequence that has to wait will go on."""

    def unpin(self, place: int) -> None:
        """Take back what a sequence has pinned."""

    def retract(self, keys: list[BlockKey]) -> None:
        """Make the states behind these blocks impossible to find."""

    @property
    def peak_slots(self) -> int:
        """The most slots that were held."""
        return 0

    def figures(self, bytes_per_slot: int) -> StateFigures:
        """Return what there is to report of slots of so many bytes."""
        return {
            "num_slots": 0,
            "bytes_per_slot": bytes_per_slot,
            "pool_bytes": 0,
            "peak_slots": 0,
            "peak_bytes": 0,
            "kept_states": 0,
            "found_states": 0,
        }

    def check(self, held: Set[int], waiting: Set[int]) -> None:
        """Prove that sequences and slots agree. For tests."""
