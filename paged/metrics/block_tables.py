"""Block tables of single sequences, and lifetimes of blocks, from a snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pagedrun.kernels.array_types import Int32s, Int64s
from pagedrun.paged.metrics.inspection_sections import (
    LastToken,
    Lifetimes,
    SharedBlocks,
    ShownTable,
    TableBlock,
)
from pagedrun.paged.metrics.pool_moments import BlockState, Moment, block_states
from pagedrun.paged.metrics.snapshot import Holdings, Snapshot, Table


def block_tables(snapshot: Snapshot, row: int, moment: Moment) -> list[ShownTable]:
    """Return the block tables of the samples of a row that held blocks at the moment."""
    held = snapshot.holdings.where(snapshot.holdings.row == row)
    # (sample, position, step) of released blocks. A new block at the same position and step is a
    # copy of the released one, because a preempted sequence is resumed in a later step.
    left = {
        (sample, position, end)
        for sample, position, end in zip(
            held.sample.tolist(), held.position.tolist(), held.end.tolist(), strict=True
        )
    }
    held = held.where((held.begin <= moment.step) & (moment.step < held.end))
    held = held.where(np.lexsort((held.begin, held.position, held.sample)))
    states = block_states(snapshot.samples, moment.number)[held.block].tolist()
    ref_counts = snapshot.samples.ref_counts[moment.number][held.block].tolist()
    fills = snapshot.samples.fills[moment.number][held.block].tolist()
    blocks: dict[int, list[TableBlock]] = {}
    for index, sample in enumerate(held.sample.tolist()):
        logical, begin = int(held.position[index]), int(held.begin[index])
        found = bool(held.found[index])
        blocks.setdefault(sample, []).append(
            {
                "logical": logical,
                "physical": int(held.block[index]),
                "ref_count": ref_counts[index],
                "state": BlockState(states[index]).name.lower(),
                "tokens": fills[index],
                "found": found,
                "copied": not found and (sample, logical, begin) in left,
                "since": begin,
            }
        )
    return [_table(sample, each, snapshot.block_size) for sample, each in blocks.items()]


def _table(sample: int, blocks: list[TableBlock], block_size: int) -> ShownTable:
    last = next((block for block in reversed(blocks) if block["tokens"]), None)
    if last is None:
        return {"sample": sample, "tokens": 0, "blocks": blocks, "last_token": None}
    num_tokens = last["logical"] * block_size + last["tokens"]
    token: LastToken = {
        "token": num_tokens - 1,
        "physical": last["physical"],
        "offset": last["tokens"] - 1,
        "slot": last["physical"] * block_size + last["tokens"] - 1,
    }
    return {"sample": sample, "tokens": num_tokens, "blocks": blocks, "last_token": token}


def residencies(snapshot: Snapshot, row: int) -> list[tuple[int, int]]:
    """Return the intervals of steps [begin, end) in which the row held blocks, in order."""
    held = snapshot.holdings.where(snapshot.holdings.row == row)
    order = np.argsort(held.begin, kind="stable")
    begins, ends = held.begin[order], np.maximum.accumulate(held.end[order])
    if not len(begins):
        return []
    # An interval begins after the end of all earlier holdings.
    (first,) = np.nonzero(np.append(True, begins[1:] > ends[:-1]))
    last = np.append(first[1:], len(begins)) - 1
    return list(zip(begins[first].tolist(), ends[last].tolist(), strict=True))


def shared_blocks(tables: Sequence[ShownTable]) -> list[SharedBlocks]:
    """Return the ranges of blocks that several tables of a row have in common, in order.

    A block of the pool has the same position in each table that holds it.
    """
    holders: dict[tuple[int, int], list[int]] = {}
    for table in tables:
        for block in table["blocks"]:
            holders.setdefault((block["logical"], block["physical"]), []).append(table["sample"])
    found: list[SharedBlocks] = []
    last: dict[tuple[int, ...], SharedBlocks] = {}
    for (logical, _), samples in sorted(holders.items()):
        stretch = last.get(tuple(samples))
        if len(samples) < 2:
            continue
        if stretch is not None and stretch["last"] == logical - 1:
            stretch["last"] = logical
        else:
            stretch = {"samples": samples, "first": logical, "last": logical}
            last[tuple(samples)] = stretch
            found.append(stretch)
    return found


@dataclass(frozen=True, slots=True)
class BlockLives(Table):
    """Lifetimes of blocks, from filling to emptying; many rows may hold the block meanwhile.

    It was first held in step `begin` and last released at step `end`; in between, it may have been
    cached without a holder. `position` is its position in the table of its first holder, `rows` the
    number of distinct rows that held it, `hits` the number of times it was found in the cache, and
    `peak_refs` the maximum number of holders. Ordered by block, then begin. In a snapshot with the
    holdings of some rows only, `begin`, `end`, `rows` and `hits` count those rows.
    """

    block: Int32s
    begin: Int32s
    end: Int32s
    position: Int32s
    rows: Int32s
    hits: Int32s
    peak_refs: Int32s

    @classmethod
    def read(cls, snapshot: Snapshot) -> "BlockLives":
        """Return the lifetimes of all blocks. Sorts the holdings twice; a million take seconds."""
        held = snapshot.holdings
        if not len(held):
            return cls.of()
        # Within a step a block is filled first and found afterwards, as by forked samples.
        held = held.where(np.lexsort((held.found, held.begin, held.block)))
        starts = _starts(held)
        life = np.cumsum(starts) - 1
        (first,) = np.nonzero(starts)
        lives = cls.of(
            block=held.block[first],
            begin=held.begin[first],
            end=np.maximum.reduceat(held.end, first),
            position=held.position[first],
            rows=_distinct(life, held.row),
            hits=np.add.reduceat(held.found, first, dtype=np.int32),
            peak_refs=_most_at_once(life, held.begin, held.end),
        )
        return lives if snapshot.row_stride == 1 else lives._raised(snapshot)

    @property
    def steps(self) -> Int32s:
        """[num_lives] int32, steps from the first holder to the last release."""
        return self.end - self.begin

    def most_shared(self, count: int) -> "BlockLives":
        """Return the lifetimes with most holders at once; ties by length, then by block.

        Blocks that never had two holders are left out.
        """
        order = np.lexsort((self.block, -self.steps, -self.peak_refs))
        return self.where(order[self.peak_refs[order] > 1][:count])

    def _raised(self, snapshot: Snapshot) -> "BlockLives":
        """Return the lifetimes with `peak_refs` raised to those of the samples, which count all
        rows."""
        span = np.int64(snapshot.num_steps + 2)
        keys = self.block * span + self.begin
        peaks = self.peak_refs.copy()
        blocks = np.arange(snapshot.num_blocks, dtype=np.int64)
        for step, refs in zip(snapshot.samples.steps, snapshot.samples.ref_counts, strict=True):
            index = np.searchsorted(keys, blocks * span + step, side="right") - 1
            alive = (index >= 0) & (self.block[index] == blocks) & (step < self.end[index])
            np.maximum.at(peaks, index[alive], refs[alive].astype(np.int32))
        columns = self.columns() | {"peak_refs": peaks}
        return BlockLives(**columns)


def lifetimes(lives: BlockLives) -> Lifetimes:
    """Return a histogram of lifetimes, in classes that double: 0, 1, 2 to 3, 4 to 7, …"""
    steps = np.sort(lives.steps)
    last = len(steps) - 1
    bits = np.frexp(steps.astype(np.float64))[1]  # binary digits: exact below 2**53
    counts = np.bincount(bits)
    classes = range(len(counts))
    return {
        "num_lives": len(steps),
        "median": int(steps[last // 2]) if len(steps) else 0,
        "p90": int(steps[last * 9 // 10]) if len(steps) else 0,
        "longest": int(steps[last]) if len(steps) else 0,
        "least": [2**each // 2 for each in classes],
        "most": [2**each - 1 for each in classes],
        "counts": counts.tolist(),
    }


def _starts(held: Holdings) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Return a mask of the holdings that begin a lifetime, sorted by block and begin,
    [num_holdings] bool.

    A block that is taken without being found is empty and has no holder; an apparent holder is a
    sequence that replaced a block in the middle of its table.
    """
    is_new_block = np.append(True, held.block[1:] != held.block[:-1])
    # One running maximum for all blocks: each block is offset above the blocks before it.
    span = np.int64(int(held.end.max()) + 1)
    floor = (np.cumsum(is_new_block) - 1) * span
    latest_end = np.maximum.accumulate(held.end + floor)
    is_over = np.append(True, (held.begin + floor)[1:] >= latest_end[:-1])
    return is_new_block | (is_over & ~held.found)


def _distinct(life: Int64s, row: Int32s) -> Int64s:
    """Return the number of distinct rows of each lifetime; `life` rises."""
    order = np.lexsort((row, life))
    life, row = life[order], row[order]
    is_new = np.append(True, (life[1:] != life[:-1]) | (row[1:] != row[:-1]))
    counts: Int64s = np.bincount(life[is_new])
    return counts


def _most_at_once(life: Int64s, begin: Int32s, end: Int32s) -> Int64s:
    """Return the maximum number of concurrent holdings of each lifetime; `life` rises from 0
    without gaps."""
    change = np.repeat(np.array([1, -1]), len(life))
    lives, steps = np.concatenate([life, life]), np.concatenate([begin, end])
    order = np.lexsort((change, steps, lives))  # releases first: a step begins with them
    running = np.cumsum(change[order])  # 0 again after each life
    lives = lives[order]
    (first,) = np.nonzero(np.append(True, lives[1:] != lives[:-1]))
    most: Int64s = np.maximum.reduceat(running, first)
    return most
