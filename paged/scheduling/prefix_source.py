"""PrefixSource: where the scheduler may find blocks that no sequence of this run has computed."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol

from pagedrun.paged.cache.block_transfer import BlockTransfer, TransferKind
from pagedrun.paged.cache.staged_blocks import StagedBlocks, StagedState
from pagedrun.paged.scheduling.groups.kv_group import KVGroup
from pagedrun.paged.scheduling.groups.no_states import NoStates
from pagedrun.paged.scheduling.prefix_donor import Donor
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.step_builder import StepBuilder
from pagedrun.paged.values.block_key import BlockKey
from pagedrun.paged.values.request import Request


class PrefixSource(Protocol):
    """Looked at when a new sequence is let in."""

    def find(
        self,
        request: Request,
        block_keys: Seq[BlockKey],
        num_hits: int,
        num_given: int,
        fits: Callable[[int], bool],
    ) -> StagedBlocks | None:
        """Return what follows the first `num_hits` blocks of the prompt, or None.

        block_keys: of the prompt's first blocks, those hits at least.

        None also where it is not worth its while beside the `num_given` tokens that a block of
        another sequence gives, nor where it does not fit. What is returned must be moved: it is
        staged for that. fits: whether the sequence can hold what it needs to go on behind so many
        tokens.
        """

    def find_state(
        self,
        request: Request,
        block_keys: Seq[BlockKey],
        num_hits: int,
        num_found: int,
        fits: Callable[[int], bool],
    ) -> StagedState | None:
        """Return a state behind more tokens than `num_found`, with which the prompt can begin, or
        None. The rest is as in `find`.
        """


def load_prefix(
    source: PrefixSource | None,
    groups: Seq[KVGroup],
    sequence: Sequence,
    num_hits: int,
    donor: Donor | None,
    step: StepBuilder,
) -> int:
    """Let the step load what `source` has behind the hits of a sequence; return its tokens.

    The sequence holds the blocks of the first group that it goes to. 0 if a donor's block gives
    about as much.
    """
    num_given = donor.num_tokens if donor is not None else 0
    if source is None:
        return 0
    size = groups[0].pool.block_size
    has_windows = any(group.window is not None for group in groups)

    def fits(num_tokens: int) -> bool:
        if has_windows and sequence.score_from < num_tokens:
            return False  # its window begins further back than what is loaded
        return _has_room(groups, sequence.place, num_tokens)

    staged = source.find(sequence.request, sequence.block_keys, num_hits, num_given, fits)
    if staged is None:
        return 0
    _load(groups, sequence.place, staged, num_hits * size + staged.num_tokens, step)
    return staged.num_tokens


def load_state(
    source: PrefixSource | None,
    groups: Seq[KVGroup],
    states: NoStates,
    sequence: Sequence,
    num_hits: int,
    num_found: int,
    step: StepBuilder,
) -> int:
    """Let a sequence begin with a state of the step's loading if `source` has one behind more than
    `num_found` tokens; return behind how many tokens it begins.

    The sequence holds the blocks of the first group up to there, and a slot to write to.
    """

    def fits(num_tokens: int) -> bool:
        is_before_end = num_tokens <= min(sequence.num_tokens - 1, sequence.score_from)
        return is_before_end and _has_room(groups, sequence.place, num_tokens)

    if source is None or not states.can_load(sequence.place):
        return num_found
    staged = source.find_state(sequence.request, sequence.block_keys, num_hits, num_found, fits)
    if staged is None:
        return num_found
    _load(groups, sequence.place, staged.blocks, staged.num_tokens, step)
    states.load(sequence, staged.source, staged.num_tokens, step)
    return staged.num_tokens


def _has_room(groups: Seq[KVGroup], place: int, num_tokens: int) -> bool:
    """Return whether a sequence can hold what it needs to go on behind so many tokens."""
    end = groups[0].pool.num_blocks_for(num_tokens)
    return all(
        each.num_lacking(place, each.first_read(num_tokens - 1), end) <= each.pool.num_free
        for each in groups
    )


def _load(
    groups: Seq[KVGroup], place: int, staged: StagedBlocks, num_tokens: int, step: StepBuilder
) -> None:
    """Let the step load the last blocks of a sequence's first `num_tokens` tokens."""
    end = groups[0].pool.num_blocks_for(num_tokens)
    for group, sources in zip(groups, staged.sources, strict=True):
        # A prompt that ends there computes its last token again.
        group.hold(place, group.first_read(num_tokens - 1), end)
        targets = group.tables.held(place, end - len(sources))
        step.transfers += [
            BlockTransfer(TransferKind.LOAD, source, target, group.index)
            for source, target in zip(sources, targets, strict=False)
        ]
