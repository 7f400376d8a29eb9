"""Recorder: block-by-block log of a run's pools, in bounded memory.

`Residency` is the log of one sequence (its block table over time); the recorder turns all of them,
and samples of the pools, into a `Snapshot`.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.array_types import Int32s, Int64s
from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.metrics.snapshot import (
    MAX_PREFIXES,
    Branchings,
    GroupSamples,
    HeldBlocks,
    HeldTables,
    Holdings,
    Lengths,
    PoolSamples,
    Preemptions,
    PrefixNodes,
    Snapshot,
)
from pagedrun.paged.metrics.timeline import Decimated
from pagedrun.paged.values.engine_config import PreemptionMode
from pagedrun.paged.values.request import Completion


class Replaced(NamedTuple):
    """Block that a sequence held at `position` until it was replaced by a copy to write to."""

    position: int
    block_id: int
    begin: int
    end: int
    found: bool


@dataclass(slots=True)
class Residency:
    """Stay of a sequence in the pool, from admission until it ends or is preempted.

    `block_ids`: its block table; `begins`: the step in which each block was taken; `found`: whether
    it had its content then. `end`: the first step without blocks, None while it holds some. A beam
    that is forked when another dies continues the residency of that one.
    """

    row: int
    sample: int
    block_ids: "array[int]" = field(default_factory=lambda: array("i"))
    begins: "array[int]" = field(default_factory=lambda: array("i"))
    found: bytearray = field(default_factory=bytearray)
    replaced: list[Replaced] = field(default_factory=list)
    end: int | None = None

    def __len__(self) -> int:
        return len(self.block_ids) + len(self.replaced)

    def take(self, block_ids: Sequence[int], step: int, *, found: bool) -> None:
        """Append blocks to the table in a step."""
        self.block_ids.extend(block_ids)
        self.begins.extend([step] * len(block_ids))
        self.found.extend([found] * len(block_ids))

    def give(self, position: int, step: int) -> None:
        """Record that the block at `position` is replaced in a step."""
        self.replaced.append(
            Replaced(
                position,
                self.block_ids[position],
                self.begins[position],
                step,
                bool(self.found[position]),
            )
        )


class Branching(NamedTuple):
    """Beam events of a row after a step.

    `forked` beams began on the blocks of others, `died` beams released theirs, `freed` of these
    blocks had no other holder.
    """

    step: int
    row: int
    forked: int
    died: int
    freed: int


class Shortage(NamedTuple):
    """Cause of a preemption: a sequence of `for_row` needed more blocks than were free."""

    for_row: int
    num_needed: int
    num_free: int


class PreemptionEvent(NamedTuple):
    """Preempted sequence: its tokens and blocks, and the cause."""

    step: int
    row: int
    sample: int
    mode: PreemptionMode
    num_tokens: int
    num_blocks: int
    cause: Shortage


class Residencies(Protocol):
    """Log of all residencies of a run, or of every `row_stride`-th row of a long run."""

    row_stride: int
    branchings: list[Branching]
    preemptions: Decimated[PreemptionEvent]

    def __iter__(self) -> Iterator[Residency]: ...


MAX_SAMPLES = 400
MIN_SAMPLES = 16
MAX_SAMPLED_BLOCKS = 8_000_000  # in all samples: 32 MB


class _PoolState(NamedTuple):
    """Holders and fills of the blocks of a pool after a step."""

    ref_counts: NDArray[np.uint16]
    fills: NDArray[np.uint16]

    @classmethod
    def of(cls, pool: BlockPool) -> "_PoolState":
        return cls(_compact(pool.ref_counts), _compact(pool.fills))


class _Sample(NamedTuple):
    """State of all pools after a step, and the block tables of the further groups."""

    step: int
    seconds: float
    state: _PoolState
    further: tuple[tuple[_PoolState, HeldBlocks], ...]


@dataclass(frozen=True, slots=True)
class WatchedGroup:
    """Pool of a further group of layers; `held` returns its block tables."""

    pool: BlockPool
    shape: PoolShape
    held: Callable[[], HeldBlocks]


class Recorder:
    """Watches one run; `snapshot` returns its history.

    A sample copies two numbers for each block. There are at most `max_samples`; a week-long run
    takes a few thousand on the way, far less than a hundredth of its time.
    """

    def __init__(
        self,
        pool: BlockPool,
        log: Residencies,
        max_samples: int = MAX_SAMPLES,
        first_group: PoolShape | None = None,
        further: Seq[WatchedGroup] = (),
    ) -> None:
        """pool, log: of the first group of layers. first_group: its shape, if there are further
        groups."""
        self._pool = pool
        self._log = log
        self._first_group = first_group
        self._further = further
        num_blocks = pool.num_blocks + sum(each.pool.num_blocks for each in further)
        capacity = max(MAX_SAMPLED_BLOCKS // num_blocks, MIN_SAMPLES)
        self._samples: Decimated[_Sample] = Decimated(min(capacity, max_samples))
        self._peak: _Sample | None = None  # always kept: the default moment of an inspection
        self._peak_blocks = 0
        self._prefixes = PrefixNodes.of()
        self._prompts: Counter[int] = Counter()
        self._answers: Counter[int] = Counter()
        self._num_steps = 0

    def note_step(self, step: int, seconds: float) -> None:
        """Sample the pools after a step, if due."""
        self._num_steps = step
        is_peak = self._pool.num_held > self._peak_blocks
        if is_peak or self._samples.wants(step):
            further = tuple((_PoolState.of(each.pool), each.held()) for each in self._further)
            sample = _Sample(step, seconds, _PoolState.of(self._pool), further)
            self._samples.add(step, sample)
            if is_peak:
                self._peak_blocks, self._peak = self._pool.num_held, sample

    def note_prefixes(self, nodes: PrefixNodes) -> None:
        """Add the prefix tree of a window."""
        self._prefixes = self._prefixes.joined(nodes).best(MAX_PREFIXES)

    def note_completion(self, completion: Completion) -> None:
        """Add the lengths of a row, unless it failed or was copied from an earlier run."""
        if completion.error is None and not completion.is_copied:
            self._prompts[len(completion.request.prompt_token_ids)] += 1
            self._answers.update(len(output.token_ids) for output in completion.outputs)

    def snapshot(self, bytes_per_token: int) -> Snapshot:
        """Return the history so far."""
        samples = self._kept_samples()
        return Snapshot(
            block_size=self._pool.block_size,
            num_blocks=self._pool.num_blocks,
            bytes_per_token=bytes_per_token,
            num_steps=self._num_steps,
            row_stride=self._log.row_stride,
            samples=_pool_samples(samples, self._pool.num_blocks),
            holdings=_holdings(self._log, self._num_steps + 1),
            preemptions=_preemptions(self._log),
            prefixes=self._prefixes,
            lengths=_lengths(self._prompts, self._answers),
            branchings=_branchings(self._log),
            first_group=self._first_group,
            further=tuple(
                _group_samples(group, [sample.further[index] for sample in samples])
                for index, group in enumerate(self._further)
            ),
        )

    def _kept_samples(self) -> list[_Sample]:
        kept = {sample.step: sample for sample in self._samples.items}
        if self._peak is not None:
            kept[self._peak.step] = self._peak
        return [kept[step] for step in sorted(kept)]


def _pool_samples(samples: Seq[_Sample], num_blocks: int) -> PoolSamples:
    ref_counts, fills = _stacked([sample.state for sample in samples], num_blocks)
    return PoolSamples(
        steps=np.array([sample.step for sample in samples], dtype=np.int64),
        times=np.array([sample.seconds for sample in samples], dtype=np.float64),
        ref_counts=ref_counts,
        fills=fills,
    )


def _group_samples(
    group: WatchedGroup, samples: Seq[tuple[_PoolState, HeldBlocks]]
) -> GroupSamples:
    """Return the samples of one group."""
    ref_counts, fills = _stacked([state for state, _ in samples], group.shape.num_blocks)
    held = [each for _, each in samples]

    def column(name: str) -> Int32s:
        return np.concatenate([np.zeros(0, np.int32), *(getattr(each, name) for each in held)])

    return GroupSamples(
        shape=group.shape,
        peak_blocks=group.pool.counts.peak_held,
        ref_counts=ref_counts,
        fills=fills,
        tables=HeldTables.of(
            moment=np.repeat(np.arange(len(held)), [len(each.rows) for each in held]),
            row=column("rows"),
            sample=column("samples"),
            first=column("firsts"),
            count=column("counts"),
        ),
        blocks=column("blocks"),
    )


def _stacked(
    state: Seq[_PoolState], num_blocks: int
) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Return holders and fills of a pool's blocks, [num_samples, num_blocks] uint16 each."""
    shape = (len(state), num_blocks)
    return (
        np.array([each.ref_counts for each in state], np.uint16).reshape(shape),
        np.array([each.fills for each in state], np.uint16).reshape(shape),
    )


def _compact(numbers: "array[int]") -> NDArray[np.uint16]:
    """Return the numbers as uint16, clipped to its maximum."""
    limit = np.iinfo(np.uint16).max
    return np.minimum(np.frombuffer(numbers, dtype=np.int32), limit).astype(np.uint16, copy=False)


def _holdings(log: Iterable[Residency], now: int) -> Holdings:
    """Return one entry for each block of each residency; blocks that are still held end `now`."""
    residencies = list(log)
    sizes = np.array([len(each.block_ids) for each in residencies], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    position = np.arange(sizes.sum()) - np.repeat(starts, sizes)
    replaced = [(owner, each) for owner in residencies for each in owner.replaced]
    early = [each for _, each in replaced]

    def column(numbers: Int64s, more: Iterable[int]) -> Int64s:
        return np.append(numbers, np.array(list(more), dtype=np.int64))

    def repeated(numbers: Iterable[int]) -> Int64s:
        return np.repeat(np.array(list(numbers), dtype=np.int64), sizes)

    def joined(arrays: "Iterable[array[int]]") -> Int64s:
        return np.fromiter(chain.from_iterable(arrays), dtype=np.int64, count=int(sizes.sum()))

    ends = (now if each.end is None else each.end for each in residencies)
    found = np.frombuffer(b"".join(each.found for each in residencies), dtype=np.bool_)
    holdings = Holdings.of(
        row=column(
            repeated(each.row for each in residencies), (owner.row for owner, _ in replaced)
        ),
        sample=column(
            repeated(each.sample for each in residencies), (owner.sample for owner, _ in replaced)
        ),
        position=column(position, (each.position for each in early)),
        block=column(
            joined(each.block_ids for each in residencies), (each.block_id for each in early)
        ),
        begin=column(joined(each.begins for each in residencies), (each.begin for each in early)),
        end=column(repeated(ends), (each.end for each in early)),
        found=np.append(found, [each.found for each in early]),
    )
    return holdings.where(np.argsort(holdings.begin, kind="stable"))


def _preemptions(log: Residencies) -> Preemptions:
    every = log.preemptions.items
    return Preemptions.of(
        step=[each.step for each in every],
        row=[each.row for each in every],
        sample=[each.sample for each in every],
        swapped=[each.mode is PreemptionMode.SWAP for each in every],
        tokens=[each.num_tokens for each in every],
        blocks=[each.num_blocks for each in every],
        for_row=[each.cause.for_row for each in every],
        needed=[each.cause.num_needed for each in every],
        free=[each.cause.num_free for each in every],
    )


def _branchings(log: Residencies) -> Branchings:
    every = log.branchings
    return Branchings.of(
        **{name: [getattr(each, name) for each in every] for name in Branching._fields}
    )


def _lengths(prompts: Counter[int], answers: Counter[int]) -> Lengths:
    tokens = sorted(prompts.keys() | answers.keys())
    return Lengths.of(
        tokens=tokens,
        prompts=[prompts[each] for each in tokens],
        answers=[answers[each] for each in tokens],
    )
