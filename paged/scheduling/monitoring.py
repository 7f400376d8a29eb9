"""Monitoring of a scheduler: detection of stalls, its state for errors, its groups for recorders.

The state contains no prompt text.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from functools import partial
from itertools import chain

import numpy as np

from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.metrics.recorder import Recorder, WatchedGroup
from pagedrun.paged.metrics.snapshot import HeldBlocks
from pagedrun.paged.scheduling.kv_groups import KVGroup
from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.values.errors import EngineStalled

# Steps without a token that are never too many, whatever the batch.
MIN_STEPS = 1000


class StallDetector:
    """Detects stalls: too many steps without a new token.

    The oldest sequence goes first in every step. If no sequence gets a token, it has all the tokens
    of the step for its prompt, so a prompt is done after `max_model_len / max_num_batched_tokens`
    steps; many times as many mean that sequences only preempt each other.
    """

    def __init__(
        self, max_model_len: int, max_num_batched_tokens: int, min_steps: int = MIN_STEPS
    ) -> None:
        self.max_steps = min_steps + 4 * -(-max_model_len // max_num_batched_tokens)
        self.num_steps = 0  # since the last token

    def is_stalled(self, num_grown: int) -> bool:
        """Record a step in which `num_grown` sequences got a token; return whether the run is
        stalled."""
        self.num_steps = 0 if num_grown else self.num_steps + 1
        return self.num_steps > self.max_steps


MAX_SEQUENCES = 64  # of each kind that are listed one by one


def engine_state(scheduler: Scheduler, num_steps: int, num_finished: int) -> dict[str, object]:
    """Return the state of a scheduler and its pool as a JSON object; any thread may call it."""
    pool = scheduler.pool
    groups = [_group(each) for each in scheduler.groups]
    return {
        "steps": num_steps,
        "rows_finished": num_finished,
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "ending": len(scheduler.ending),
        "preemptions": {str(mode): n for mode, n in scheduler.counts.preemptions.items()},
        "pool": {
            "block_size": pool.block_size,
            "num_blocks": pool.num_blocks,
            "free": pool.num_free,
            "held": pool.num_held,
            "shared": pool.num_shared,
            "cached": pool.num_cached,
            "tokens_held": pool.num_tokens_held,
        },
        "swap_space": {
            "num_blocks": scheduler.swap_space.num_blocks,
            "free": scheduler.swap_space.num_free,
        },
        **({"kv_groups": groups} if len(groups) > 1 else {}),
        "sequences": {
            "running": _told(scheduler.running),
            "waiting": _told(scheduler.waiting),
            "ending": _told(scheduler.ending),
        },
    }


def stalled(what: str, scheduler: Scheduler, state: dict[str, object]) -> EngineStalled:
    """Return the error of a stalled engine. state: see `engine_state`."""
    pool = scheduler.pool
    return EngineStalled(
        f"{what}: {len(scheduler.running)} running, {len(scheduler.waiting)} waiting, "
        f"{pool.num_free} of {pool.num_blocks} blocks free; please report this",
        state,
    )


def _group(group: KVGroup) -> dict[str, object]:
    pool, swap_space = group.pool, group.swap_space
    return {
        "window": group.window,
        "num_blocks": pool.num_blocks,
        "free": pool.num_free,
        "held": pool.num_held,
        "cached": pool.num_cached,
        "host_blocks_free": swap_space.num_free,
    }


def _told(sequences: Iterable[Sequence]) -> list[dict[str, object]]:
    return [_sequence(each) for each in list(sequences)[:MAX_SEQUENCES]]


def _sequence(sequence: Sequence) -> dict[str, object]:
    return {
        "row": sequence.request.index,
        "sample": sequence.sample_index,
        "prompt_tokens": sequence.num_prompt_tokens,
        "generated_tokens": sequence.num_output_tokens,
        "max_tokens": sequence.request.params.max_tokens,
        "computed_tokens": sequence.num_computed_tokens,
        "stored_tokens": sequence.num_stored_tokens,
        "preemptions": sequence.num_preemptions,
        "block_table": sequence.block_table,
        "host_blocks": len(sequence.host_blocks),
    }


def held_blocks(scheduler: Scheduler, group: KVGroup) -> HeldBlocks:
    """Return the block tables of a group of layers."""
    active = [*scheduler.running, *scheduler.ending]
    row_indices = np.array([each.row_index for each in active], dtype=np.int64)
    table, tables = scheduler.table, group.tables
    firsts = tables.firsts[row_indices]
    blocks = chain.from_iterable(map(tables.held, row_indices.tolist()))
    return HeldBlocks(
        rows=table.row[row_indices].astype(np.int32),
        samples=table.sample[row_indices].astype(np.int32),
        firsts=firsts.astype(np.int32),
        counts=(tables.ends[row_indices] - firsts).astype(np.int32),
        blocks=np.fromiter(blocks, dtype=np.int32),
    )


def recorder_of(scheduler: Scheduler, shapes: Seq[PoolShape]) -> Recorder:
    """Return a recorder of a scheduler's groups, whose pools have these shapes."""
    further = [
        WatchedGroup(group.pool, shape, partial(held_blocks, scheduler, group))
        for group, shape in zip(scheduler.groups[1:], shapes[1:], strict=True)
    ]
    first = shapes[0] if further else None
    return Recorder(scheduler.pool, scheduler.residency, first_group=first, further=further)
