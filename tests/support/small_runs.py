"""Small invented runs: a pool played through step by step, and the snapshot it would leave."""

import random
from dataclasses import dataclass, field

import numpy as np

from pagedrun.paged.metrics.snapshot import (
    Holdings,
    Lengths,
    PoolSamples,
    Preemptions,
    PrefixNodes,
    Snapshot,
)

BLOCK_SIZE = 4


@dataclass
class Holding:
    """A block in a sequence's table, where it may still be."""

    row: int
    sample: int
    position: int
    block: int
    begin: int
    found: bool
    end: int = -1


@dataclass
class SmallRun:
    """What happened in each step, kept in the plainest way: the truth that queries must find."""

    num_blocks: int
    num_steps: int
    holders: list[list[set[tuple[int, int]]]] = field(default_factory=list)  # step, block
    fills: list[list[int]] = field(default_factory=list)
    holdings: list[Holding] = field(default_factory=list)

    def snapshot(self, *, every: int = 1, row_stride: int = 1) -> Snapshot:
        """The snapshot of each `every`-th step and of the rows that `row_stride` divides."""
        steps = range(0, self.num_steps, every)
        kept = [holding for holding in self.holdings if holding.row % row_stride == 0]
        random.Random(0).shuffle(kept)  # within a step they come in any order
        kept.sort(key=lambda holding: holding.begin)
        return Snapshot(
            block_size=BLOCK_SIZE,
            num_blocks=self.num_blocks,
            bytes_per_token=64,
            num_steps=self.num_steps,
            row_stride=row_stride,
            samples=PoolSamples(
                steps=np.array(steps, np.int64),
                times=np.array(steps, np.float64) / 8,
                ref_counts=np.array(
                    [[len(each) for each in self.holders[step]] for step in steps], np.uint16
                ).reshape(len(steps), self.num_blocks),
                fills=np.array([self.fills[step] for step in steps], np.uint16).reshape(
                    len(steps), self.num_blocks
                ),
            ),
            holdings=Holdings.of(
                **{
                    name: [getattr(holding, name) for holding in kept]
                    for name in ("row", "sample", "position", "block", "begin", "end", "found")
                }
            ),
            preemptions=Preemptions.of(),
            prefixes=PrefixNodes.of(),
            lengths=Lengths.of(),
        )


def play(seed: int, num_blocks: int = 6, num_steps: int = 20) -> SmallRun:
    """Let sequences come, share cached blocks, fork, grow and go, as chance will have it."""
    chance = random.Random(seed)
    run = SmallRun(num_blocks, num_steps)
    held: dict[tuple[int, int], list[Holding]] = {}
    fills = [0] * num_blocks
    cached: set[int] = set()
    next_row = 0
    for step in range(num_steps):
        for name in [name for name in held if chance.random() < 0.3]:
            for holding in held.pop(name):
                holding.end = step
                others = [other for holdings in held.values() for other in holdings]
                if all(other.block != holding.block for other in others):
                    if chance.random() < 0.5:
                        cached.add(holding.block)
                    else:
                        fills[holding.block] = 0
        taken = {holding.block for holdings in held.values() for holding in holdings}
        free = [block for block in range(num_blocks) if block not in taken]
        chance.shuffle(free)
        if free and chance.random() < 0.7:
            holdings: list[Holding] = []
            for block in free[: chance.randint(1, 3)]:
                found = block in cached and chance.random() < 0.6
                cached.discard(block)
                fills[block] = fills[block] if found else chance.randint(1, BLOCK_SIZE)
                holdings.append(Holding(next_row, 0, len(holdings), block, step, found))
            held[next_row, 0] = holdings
            run.holdings += holdings
            if chance.random() < 0.3:  # a second sample of the row shares all of it
                twins = [Holding(next_row, 1, s.position, s.block, step, True) for s in holdings]
                held[next_row, 1] = twins
                run.holdings += twins
            next_row += 1
        elif held and chance.random() < 0.7:  # another row finds what one holds
            holdings = [
                Holding(next_row, 0, s.position, s.block, step, True)
                for s in chance.choice(list(held.values()))
            ]
            held[next_row, 0] = holdings
            run.holdings += holdings
            next_row += 1
        run.fills.append(list(fills))
        run.holders.append(
            [
                {name for name, holdings in held.items() if any(s.block == block for s in holdings)}
                for block in range(num_blocks)
            ]
        )
    for holdings in held.values():
        for holding in holdings:
            holding.end = num_steps
    return run
