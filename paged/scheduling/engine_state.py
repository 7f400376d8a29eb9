"""The state of an engine at one moment: what runs, what waits, what they hold. No prompt text."""

from collections.abc import Iterable

from pagedrun.paged.scheduling.groups.kv_group import KVGroup
from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.values.errors import EngineStalled

MAX_SEQUENCES = 64  # of each kind that are listed one by one


def engine_state(scheduler: Scheduler, num_steps: int, num_finished: int) -> dict[str, object]:
    """Return what JSON can hold of a scheduler and its pool; any thread may ask."""
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
    """Return the error of an engine that does not go on. state: see `engine_state`."""
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
