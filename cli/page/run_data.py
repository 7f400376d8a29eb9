"""Chart data of a run page: columns of the report, and the snapshot reduced in size.

Columns of numbers are stored as differences, deflated, in base64. Most differences are zero, so
hundreds of samples of tens of thousands of blocks take a few hundred kilobytes. The report is
untrusted input: `CheckedReport` validates every figure.
"""

import base64
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.metrics.inspection import beam_rows_of
from pagedrun.paged.metrics.pool_moments import num_tokens_held, state_counts
from pagedrun.paged.metrics.report_sections import (
    GroupFigures,
    KVFigures,
    MemoryFigures,
    RowCounts,
    Section,
    section_of,
)
from pagedrun.paged.metrics.snapshot import Holdings, PrefixNodes, Snapshot

LedgerPart = Literal["weights", "kv_pool", "activations_peak", "other", "free"]
LEDGER: tuple[LedgerPart, ...] = ("weights", "kv_pool", "activations_peak", "other", "free")


class Timeline(TypedDict):
    """Columns of the report's `timeline`, equally long; unknown columns are empty."""

    t: list[float]
    step: list[float]
    running: list[float]
    waiting: list[float]
    blocks_used: list[float]
    blocks_shared: list[float]
    blocks_cached: list[float]
    tokens: list[float]


@dataclass(frozen=True, slots=True)
class CheckedReport:
    """Sections of an untrusted report (the object in `OUT.report.json`).

    A figure that is missing, or not a finite number, is 0.
    """

    report: Mapping[str, object]

    @property
    def kv(self) -> KVFigures:
        """Figures of the KV pool."""
        return self.section("kv", KVFigures)

    @property
    def ledger(self) -> dict[LedgerPart, int]:
        """Bytes of each part of the memory, in the order of `LEDGER`."""
        memory = self.section("memory", MemoryFigures)
        return {name: memory[name] for name in LEDGER}

    def groups(self) -> list[GroupFigures]:
        """Return the pools of a model with several KV groups."""
        found = self._object("kv").get("groups")
        records = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        return [self._group(one) for one in records]

    def _group(self, record: Mapping[str, object]) -> GroupFigures:
        has_window = record.get("window") is not None
        return section_of(
            GroupFigures,
            lambda name: _number(record.get(name)) if name != "window" or has_window else None,
        )

    def numbers(self, part: str) -> dict[str, float]:
        """Return the figures of an object of the report, by name."""
        return {str(name): _number(value) for name, value in self._object(part).items()}

    def texts(self, part: str) -> dict[str, str]:
        """Return the values of an object as text, by name; nested objects are flattened."""
        lines: dict[str, str] = {}
        for name, value in self._object(part).items():
            inside = value if isinstance(value, dict) else {"": value}
            lines |= {f"{name} {each}".rstrip(): str(told) for each, told in inside.items()}
        return lines

    def advice(self) -> list[str]:
        """Return the sentences of the advice."""
        found = self.report.get("advice")
        each = found if isinstance(found, list) else []
        return [str(one["sentence"]) for one in each if isinstance(one, dict) and "sentence" in one]

    def timeline(self) -> Timeline:
        """Return the columns of the timeline."""
        found = self.report.get("timeline")
        each = found if isinstance(found, list) else []
        records = [one for one in each if isinstance(one, dict)]
        return section_of(Timeline, lambda name: [_number(one.get(name)) for one in records])

    def section(self, part: str, kind: type[Section]) -> Section:
        """Return the figures of a section."""
        found = self._object(part)
        return section_of(kind, lambda name: _number(found.get(name)))

    def _object(self, part: str) -> Mapping[str, object]:
        """Return an object of the report, empty if missing."""
        found = self.report.get(part)
        return found if isinstance(found, dict) else {}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return value if abs(value) <= 2**53 and math.isfinite(value) else 0


MAX_CELLS = 12_000_000  # blocks times moments; a browser holds two numbers for each
MAX_HOLDINGS = 400_000
MAX_PREFIXES = 2_000
MAX_BARS = 40
_STEPS_OF_TEN = (1, 2, 5)


class PoolShown(TypedDict):
    """Size and use of the pool."""

    block_size: int
    num_blocks: int
    utilization_at_peak: float
    contiguous_utilization: float
    paged_max_requests: int
    contiguous_max_requests: int


class Packed(TypedDict):
    """Column of integers: its differences, compressed, in base64."""

    type: str
    width: int
    bytes: str


class MapShown(TypedDict):
    """Blocks and holders at the sampled steps.

    Holders are included for rows whose index `rowStride` divides; samples of `beamRows` are beams.
    """

    blockSize: int
    numBlocks: int
    rowStride: int
    beamRows: list[int]
    steps: list[int]
    times: list[float]
    refCounts: Packed
    fills: Packed
    holdings: dict[str, Packed]


class Histogram(TypedDict):
    """Bars of equal width: the beginning and the number of sequences of each."""

    width: int
    begins: list[int]
    counts: list[int]


class LengthsShown(TypedDict):
    """Histograms of prompt and answer lengths, in tokens."""

    prompts: Histogram
    answers: Histogram


class RunData(TypedDict):
    """Input of the scripts; a prefix is [parent, start, end, rows, row, saved]."""

    kv: PoolShown
    rows: int
    timeline: Timeline
    memory: dict[LedgerPart, int]
    map: MapShown | None
    prefixes: list[list[int]]
    lengths: LengthsShown | None


def run_data(
    figures: CheckedReport,
    snapshot: Snapshot | None,
    *,
    max_holdings: int = MAX_HOLDINGS,
    max_prefixes: int = MAX_PREFIXES,
) -> RunData:
    """Return the input of the scripts, with a limited number of holdings and prefixes."""
    timeline = figures.timeline()
    if not timeline["t"] and snapshot is not None:
        timeline = sampled_timeline(snapshot)
    return {
        "kv": _pool(figures, snapshot),
        "rows": figures.section("rows", RowCounts)["total"],
        "timeline": timeline,
        "memory": figures.ledger,
        "map": None if snapshot is None else _map(snapshot, max_holdings),
        "prefixes": [] if snapshot is None else _prefixes(snapshot.prefixes, max_prefixes),
        "lengths": None if snapshot is None else _lengths(snapshot),
    }


def _pool(figures: CheckedReport, snapshot: Snapshot | None) -> PoolShown:
    kv = figures.kv
    return {
        "block_size": kv["block_size"] if snapshot is None else snapshot.block_size,
        "num_blocks": kv["num_blocks"] if snapshot is None else snapshot.num_blocks,
        "utilization_at_peak": kv["utilization_at_peak"],
        "contiguous_utilization": kv["contiguous_utilization"],
        "paged_max_requests": kv["paged_max_requests"],
        "contiguous_max_requests": kv["contiguous_max_requests"],
    }


def sampled_timeline(snapshot: Snapshot) -> Timeline:
    """Return the timeline of the samples, without counts of running and waiting sequences."""
    samples = snapshot.samples
    _, cached, private, shared = state_counts(samples).T
    return {
        "t": samples.times.tolist(),
        "step": samples.steps.tolist(),
        "running": [],
        "waiting": [],
        "blocks_used": (private + shared).tolist(),
        "blocks_shared": shared.tolist(),
        "blocks_cached": cached.tolist(),
        "tokens": [num_tokens_held(samples, each) for each in range(len(samples))],
    }


def _map(snapshot: Snapshot, max_holdings: int) -> MapShown | None:
    """Return blocks and holders at the sampled steps; None without a sample."""
    samples = snapshot.samples
    if not len(samples) or not snapshot.num_blocks:
        return None
    chosen = kept_moments(len(samples), snapshot.num_blocks)
    holdings, stride = _kept_holdings(snapshot, max_holdings)
    return {
        "blockSize": snapshot.block_size,
        "numBlocks": snapshot.num_blocks,
        "rowStride": stride,
        "beamRows": beam_rows_of(snapshot),
        "steps": samples.steps[chosen].tolist(),
        "times": samples.times[chosen].tolist(),
        "refCounts": pack(samples.ref_counts[chosen]),
        "fills": pack(samples.fills[chosen]),
        "holdings": {name: pack(column) for name, column in holdings.columns().items()},
    }


def kept_moments(num_samples: int, num_blocks: int) -> NDArray[np.int64]:
    """Return the indices of the samples on the page: all, or evenly spaced ones."""
    num_kept = min(num_samples, max(MAX_CELLS // num_blocks, 2))
    return np.unique(np.linspace(0, num_samples - 1, num_kept).round().astype(np.int64))


def _kept_holdings(snapshot: Snapshot, max_holdings: int) -> tuple[Holdings, int]:
    """Return at most `max_holdings` holdings, and the stride of the row indices in them."""
    holdings, stride = snapshot.holdings, max(snapshot.row_stride, 1)
    while len(holdings) > max_holdings:
        stride *= 2
        holdings = holdings.where(holdings.row % stride == 0)
    return holdings, stride


def _prefixes(prefixes: PrefixNodes, max_prefixes: int) -> list[list[int]]:
    """Return the tree's nodes as [parent, start, end, rows, row, saved], parents first.

    A large tree keeps the nodes with the most rows. No node has more rows than its parent, so the
    parents of kept nodes are kept.
    """
    order = np.argsort(-prefixes.rows, kind="stable")[:max_prefixes]
    new_index = {int(node): index for index, node in enumerate(order)}
    return [
        [
            new_index.get(int(prefixes.parent[node]), -1),
            int(prefixes.start[node]),
            int(prefixes.end[node]),
            int(prefixes.rows[node]),
            int(prefixes.row[node]),
            int(prefixes.saved[node]),
        ]
        for node in order
    ]


def _lengths(snapshot: Snapshot) -> LengthsShown:
    """Return the histograms of prompt and answer lengths."""
    lengths = snapshot.lengths
    return {
        "prompts": histogram(lengths.tokens, lengths.prompts),
        "answers": histogram(lengths.tokens, lengths.answers),
    }


def histogram(tokens: NDArray[np.int32], counts: NDArray[np.int64]) -> Histogram:
    """Return a histogram of `counts` over `tokens`, both [num_lengths].

    It has about `MAX_BARS` bars at most, whose width is 1, 2 or 5 times a power of ten, from the
    first nonempty bar to the last.
    """
    there = counts > 0
    if not there.any():
        return {"width": 1, "begins": [], "counts": []}
    tokens, counts = tokens[there], counts[there]
    width = _width(int(tokens[-1] - tokens[0]) + 1)
    bars = tokens // width
    first = int(bars[0])
    heights = np.bincount(bars - first, weights=counts).astype(np.int64)
    begins = (np.arange(len(heights)) + first) * width
    return {"width": width, "begins": begins.tolist(), "counts": heights.tolist()}


def _width(reach: int) -> int:
    width, power = 1, 1
    while reach > width * MAX_BARS:
        for times in _STEPS_OF_TEN:
            width = times * power
            if reach <= width * MAX_BARS:
                break
        power *= 10
    return width


_STORED = {"u": ("uint16", "<u2"), "i": ("int32", "<i4"), "b": ("uint16", "<u2")}


def pack(column: NDArray[Any]) -> Packed:
    """Return `column`, of one or two dimensions, for `unpack` in charts.js.

    Differences along the first dimension wrap around. dtype: bool, uint16 or int32.
    """
    name, stored = _STORED[column.dtype.kind]
    assert column.dtype.kind == "b" or column.dtype == name, f"cannot pack {column.dtype}"
    values = column.astype(stored)
    differences = values.copy()
    differences[1:] -= values[:-1]
    packed = zlib.compress(differences.tobytes(), 6)
    width = column.shape[1] if column.ndim == 2 else 1
    return {"type": name, "width": width, "bytes": base64.b64encode(packed).decode("ascii")}
