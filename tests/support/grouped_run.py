"""A run of a model with two groups of layers, watched step by step; nothing is computed."""

from dataclasses import dataclass, field

from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.metrics.snapshot import Snapshot
from pagedrun.paged.scheduling.monitoring import recorder_of
from tests.support.drive import Drive, request

SIZE, WINDOW = 4, 9
SHAPES = (PoolShape(1, None, 60, 8), PoolShape(5, WINDOW, 24, 40))


@dataclass
class GroupedRun:
    """`held` says after each step, by row and sample, where its table of the window's group begins
    and which blocks it holds; `num_held` how many are held by any."""

    held: list[dict[tuple[int, int], tuple[int, list[int]]]] = field(default_factory=list)
    num_held: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = [request(0, range(50), max_tokens=30), request(1, [7] * 6, max_tokens=9, n=2)]
        rows.append(request(2, [*range(30), 99], max_tokens=20))
        first, second = SHAPES
        self.drive = Drive(
            rows, SIZE, first.num_blocks, 3, budget=16, windows={WINDOW: second.num_blocks}
        )
        scheduler = self.drive.scheduler
        self.recorder = recorder_of(scheduler, SHAPES)
        while scheduler.has_work:
            scheduler.begin_step()
            self.drive.step()
            self.recorder.note_step(len(self.held) + 1, len(self.held) / 10)
            self._note()

    def _note(self) -> None:
        scheduler = self.drive.scheduler
        (pool,), (_, group) = self.drive.windowed_pools, scheduler.groups
        self.num_held.append(pool.num_held)
        self.held.append(
            {
                (each.request.index, each.sample_index): (
                    int(group.tables.firsts[each.row_index]),
                    group.tables.held(each.row_index),
                )
                for each in scheduler.running
            }
        )

    def snapshot(self) -> Snapshot:
        return self.recorder.snapshot(bytes_per_token=48)
