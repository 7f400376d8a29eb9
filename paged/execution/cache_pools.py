"""The books of a cache's memory, as a scheduler begins them."""

from pagedrun.paged.cache.kv_cache import KVCache, StateObjects
from pagedrun.paged.scheduling.kv_groups import GroupPool
from pagedrun.paged.scheduling.states import StatePool


def further_pools(cache: KVCache) -> list[GroupPool]:
    """Return those of the groups of layers behind the first."""
    return [
        GroupPool.of(cache.block_size, each.num_blocks, each.num_host_blocks, each.spec.window)
        for each in cache.groups[1:]
    ]


def state_pool(cache: KVCache) -> StatePool | None:
    """Return that of the states, None if there are none."""
    states = cache.states
    if states is None:
        return None
    return StatePool.of(*states.num_slots, whole_prompts=isinstance(states, StateObjects))
