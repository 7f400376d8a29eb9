"""What a recorder watches of a scheduler: the first group of layers, and those behind it."""

from collections.abc import Sequence as Seq
from itertools import chain

import numpy as np

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.cache.pool_shape import PoolShape
from pagedrun.paged.report.record.group_samples import HeldBlocks
from pagedrun.paged.report.record.recorder import Recorder
from pagedrun.paged.scheduling.groups.kv_group import KVGroup
from pagedrun.paged.scheduling.scheduler import Scheduler


class GroupWatch:
    """Implements `WatchedGroup` for a group of a scheduler."""

    def __init__(self, scheduler: Scheduler, group: KVGroup, shape: PoolShape) -> None:
        self._scheduler = scheduler
        self._group = group
        self.shape = shape

    @property
    def pool(self) -> BlockPool:
        """Its pool."""
        return self._group.pool

    def held(self) -> HeldBlocks:
        """Return which sequences hold what now."""
        active = [*self._scheduler.running, *self._scheduler.ending]
        places = np.array([each.place for each in active], dtype=np.int64)
        table, tables = self._scheduler.table, self._group.tables
        firsts = tables.firsts[places]
        blocks = chain.from_iterable(map(tables.held, places.tolist()))
        return HeldBlocks(
            rows=table.row[places].astype(np.int32),
            samples=table.sample[places].astype(np.int32),
            firsts=firsts.astype(np.int32),
            counts=(tables.ends[places] - firsts).astype(np.int32),
            blocks=np.fromiter(blocks, dtype=np.int32),
        )


def recorder_of(scheduler: Scheduler, shapes: Seq[PoolShape]) -> Recorder:
    """Return a recorder of a scheduler's groups, whose pools have these shapes."""
    further = [
        GroupWatch(scheduler, group, shape)
        for group, shape in zip(scheduler.groups[1:], shapes[1:], strict=True)
    ]
    first = shapes[0] if further else None
    return Recorder(scheduler.pool, scheduler.residency, first_group=first, further=further)
