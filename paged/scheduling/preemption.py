"""Preemption: frees the blocks of a sequence that must wait, and keeps its prefix cached."""

from pagedrun.paged.cache.block_pool import BlockTransfer, TransferKind
from pagedrun.paged.metrics.recorder import Shortage
from pagedrun.paged.scheduling.scheduler_state import SchedulerState
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.step_input import StepBuilder
from pagedrun.paged.values.engine_config import PreemptionMode
from pagedrun.paged.values.planned_request import BlockKey


class Preemption:
    """Frees the blocks of a sequence that must wait; `mode`: swap out its private blocks, or
    recompute them."""

    def __init__(self, state: SchedulerState, mode: PreemptionMode) -> None:
        self._state = state
        self._pool = state.pool
        self._mode = mode

    def shortage(self, needy: Sequence, end: int) -> Shortage:
        """Return the cause of a preemption by a sequence that stores its tokens up to `end`: the
        shortage of the first group without room for them."""
        for group in self._state.groups:
            missing = group.pool.num_blocks_for(end) - int(group.tables.ends[needy.row_index])
            if missing > group.pool.num_free:
                return Shortage(needy.request.index, missing, group.pool.num_free)
        # No block is missing where it only needs a copy of a shared one.
        missing = max(self._pool.num_blocks_for(end) - needy.num_blocks, 1)
        return Shortage(needy.request.index, missing, self._pool.num_free)

    def preempt(
        self, sequence: Sequence, cause: Shortage, step: StepBuilder, resumes_from: int
    ) -> None:
        """Free a sequence's blocks; private ones are saved to the host if it has room.

        The caller puts the sequence among the waiting ones. resumes_from: the first token from
        which it, or a beam folded into it, resumes; if a window reaches further back than the saved
        blocks, the sequence is recomputed.
        """
        self._pin_prompt(sequence)
        mode = self._mode
        if mode is PreemptionMode.SWAP and (
            self._misses_blocks(sequence, resumes_from) or not self._swap_out(sequence, step)
        ):
            mode = PreemptionMode.RECOMPUTE
        self._state.counts.preemptions[mode] += 1
        sequence.num_preemptions += 1
        self._state.residency.preempt(sequence, mode, cause)
        self._state.residency.end(sequence)
        self._state.release(sequence)
        for group in self._state.groups:
            group.tables.set(sequence.row_index, [])
        if mode is PreemptionMode.RECOMPUTE:
            sequence.forget_blocks()

    def _misses_blocks(self, sequence: Sequence, resumes_from: int) -> bool:
        """Return whether the saved blocks begin after the start of a window, or the saved state is
        that of a later token."""
        computed = sequence.num_computed_tokens
        if self._state.states.has_slots and resumes_from < computed:
            return True
        groups = self._state.further
        return any(each.first_read(resumes_from) < each.first_read(computed) for each in groups)

    def _swap_out(self, sequence: Sequence, step: StepBuilder) -> bool:
        """Save every stored block except those of a published prefix that others hold."""
        num_stored = self._pool.num_blocks_for(sequence.num_stored_tokens)
        first = 0
        while first < num_stored and self._outlives(sequence.block(first)):
            first += 1
        host_blocks = self._state.swap_space.take(num_stored - first)
        if not host_blocks:
            return False
        has_room = self._state.states.swap_out(sequence.row_index, step)
        if not has_room or not self._swap_out_windows(sequence, step):
            self._state.states.drop_host_slot(sequence.row_index)
            self._state.swap_space.give_back(host_blocks)
            return False
        for index, target in zip(range(first, num_stored), host_blocks, strict=True):
            sequence.host_blocks[index] = target
            source = sequence.block(index)
            step.transfers.append(BlockTransfer(TransferKind.SWAP_OUT, source, target))
        return True

    def _swap_out_windows(self, sequence: Sequence, step: StepBuilder) -> bool:
        """Save the blocks within the windows of the further groups."""
        row_index = sequence.row_index
        for group in self._state.further:
            group.free_behind(row_index, sequence.num_computed_tokens)
            num_stored = group.pool.num_blocks_for(sequence.num_stored_tokens)
            sources = group.tables.held(row_index)[
                : num_stored - int(group.tables.firsts[row_index])
            ]
            targets = group.swap_space.take(len(sources))
            if targets is None:
                for each in self._state.further:
                    each.drop_host_blocks(row_index)
                return False
            group.on_host[row_index] = targets
        for group in self._state.further:
            pairs = zip(group.tables.held(row_index), group.on_host[row_index], strict=False)
            step.transfers += [
                BlockTransfer(TransferKind.SWAP_OUT, source, target, group.index)
                for source, target in pairs
            ]
        return True

    def defer(self, child: Sequence) -> None:
        """Reset a forked sibling without references to blocks, so that it can wait."""
        self._pin_prompt(child)
        child.forget_blocks()
        child.num_tokens_ever_computed = 0  # recomputed, but not because of a preemption

    def _pin_prompt(self, sequence: Sequence) -> None:
        """Pin the prompt blocks of a sequence, and a state, so that they stay cached while there is
        room."""
        if not self._state.prefix_caching:
            return
        size = self._pool.block_size
        num_full = min(sequence.num_stored_tokens, sequence.num_prompt_tokens) // size
        prompt = sequence.request.prompt_token_ids[: num_full * size]
        keys = BlockKey.chain(prompt, size, sequence.block_keys[:num_full])
        if num_full > len(sequence.block_keys):
            sequence.block_keys = keys
        sequence.pinned_keys = keys
        self._pool.pin(keys)
        for block_id, key in zip(sequence.block_table, keys, strict=False):
            self._pool.publish(block_id, key)
        for group in self._state.further:
            group.pin(sequence.row_index, keys)
        self._state.states.pin(sequence)

    def _outlives(self, block_id: int) -> bool:
        return self._pool.is_published(block_id) and self._pool.ref_count(block_id) > 1
