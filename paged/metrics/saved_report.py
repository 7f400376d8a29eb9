"""Reads the figures of pool and cache from a report file, and checks them."""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pagedrun.paged.metrics.report_sections import GroupFigures, section_of
from pagedrun.paged.values.errors import UsageError

MAX_BYTES = 2**26  # a report has two thousand points in time and a few hundred figures
MAX_NUMBER = 2**63
Number = int | float

_PATHS = {
    "block_size": ("kv", "block_size"),
    "num_blocks": ("kv", "num_blocks"),
    "bytes_per_token": ("kv", "bytes_per_token"),
    "peak_blocks": ("kv", "peak_blocks"),
    "utilization_at_peak": ("kv", "utilization_at_peak"),
    "prompt_tokens": ("tokens", "prompt"),
    "hits": ("prefix", "hits"),
    "misses": ("prefix", "misses"),
    "hit_tokens": ("prefix", "hit_tokens"),
    "achievable_hit_rate": ("prefix", "achievable_hit_rate"),
    "duplicate_rows": ("prefix", "duplicate_rows"),
    "shared_blocks_peak": ("prefix", "shared_blocks_peak"),
    "bytes_saved": ("prefix", "bytes_saved"),
    "evictions": ("prefix", "evictions"),
    "forks": ("copy_on_write", "forks"),
    "block_copies": ("copy_on_write", "block_copies"),
    "swap": ("preemptions", "swap"),
    "recompute": ("preemptions", "recompute"),
    "num_slots": ("states", "num_slots"),
    "bytes_per_slot": ("states", "bytes_per_slot"),
    "peak_slots": ("states", "peak_slots"),
    "kept_states": ("states", "kept_states"),
    "found_states": ("states", "found_states"),
    "pinned_bytes": ("streaming", "pinned_bytes"),
    "ring_bytes": ("streaming", "ring_bytes"),
    "streamed_bytes": ("weights", "streamed_bytes"),
    "passes": ("weights", "passes"),
    "bytes_read": ("weights", "bytes_read"),
    "read_s": ("streaming", "read_s"),
    "wait_s": ("streaming", "wait_s"),
}
_NEEDED = ("block_size", "num_blocks", "bytes_per_token")
_POINT = ("t", "step", "blocks_used", "blocks_shared", "blocks_cached", "tokens")


@dataclass(frozen=True, slots=True)
class SavedReport:
    """Figures by name (the keys of `_PATHS`), without missing ones.

    `timeline`: pool counts at some steps (`t` in seconds, `step`, `blocks_used`, `blocks_shared`,
    `blocks_cached`, `tokens`), by rising step. `groups`: pools of a model with several groups of
    layers. `replicas`: entries of the report, unchecked. `streamed_layers`: see `StreamingFigures`,
    empty if all weights were in memory.
    """

    figures: Mapping[str, Number]
    timeline: tuple[Mapping[str, Number], ...]
    groups: tuple[GroupFigures, ...] = ()
    replicas: tuple[Mapping[str, object], ...] = ()
    streamed_layers: str = ""

    @classmethod
    def read(cls, path: Path) -> "SavedReport":
        """Read a report; raises `UsageError` with the name of the file if it is invalid."""
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                raise UsageError(f"{path} is not a report: not a file, or far too large")
            text = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror})") from error
        try:
            return cls._parse(json.loads(text))
        except RecursionError as error:
            raise UsageError(f"{path} is not a report of pagedrun: nested too deep") from error
        except ValueError as error:
            raise UsageError(f"{path} is not a report of pagedrun: {error}") from error

    def get(self, name: str) -> Number | None:
        """Return a figure, None if the report lacks it."""
        if name not in _PATHS:
            raise KeyError(name)
        return self.figures.get(name)

    @classmethod
    def _parse(cls, report: Any) -> "SavedReport":
        if not isinstance(report, dict) or not isinstance(report.get("kv"), dict):
            raise ValueError('the object "kv" is missing')
        figures = {}
        for name, (section, key) in _PATHS.items():
            part = report.get(section, {})
            if not isinstance(part, dict):
                raise ValueError(f'"{section}" is not an object')
            if part.get(key) is not None or name in _NEEDED:
                figures[name] = _number(f"{section}.{key}", part.get(key))
        timeline = report.get("timeline") or []
        if not isinstance(timeline, list):
            raise ValueError('"timeline" is not a list')
        points = tuple(map(_point, timeline))
        steps = [point["step"] for point in points]
        if any(later <= sooner for sooner, later in pairwise(steps)):
            raise ValueError('the steps of "timeline" do not increase')
        replicas = report.get("replicas") or []
        if not isinstance(replicas, list) or not all(isinstance(one, dict) for one in replicas):
            raise ValueError('"replicas" is not a list of objects')
        # After deaths of replicas, `num_blocks` counts the pools of the survivors only.
        most = MAX_NUMBER if replicas else figures.get("num_blocks", 0)
        for point in points:
            used, shared, cached = (point[name] for name in _POINT[2:5])
            if shared > used or used + cached > most:
                raise ValueError('"timeline" has more blocks than the pool')
        groups = report["kv"].get("groups") or []
        if not isinstance(groups, list):
            raise ValueError('"kv.groups" is not a list')
        layers = report.get("streaming", {}).get("layers", "")
        if not isinstance(layers, str) or not set(layers) <= {"p", "s"}:
            raise ValueError('"streaming.layers" has other letters than p and s')
        return cls(figures, points, tuple(map(_group, groups)), tuple(replicas), layers)


def _point(record: Any) -> dict[str, Number]:
    if not isinstance(record, dict):
        raise ValueError('"timeline" has an item that is not an object')
    return {name: _number(f"timeline.{name}", record.get(name)) for name in _POINT}


def _group(record: Any) -> GroupFigures:
    if not isinstance(record, dict):
        raise ValueError('"kv.groups" has an item that is not an object')

    def figure(name: str) -> int | None:
        value = record.get(name)
        if value is None and name == "window":
            return None
        return int(_number(f"kv.groups.{name}", value))

    return section_of(GroupFigures, figure)


def _number(name: str, value: Any) -> Number:
    if type(value) not in (int, float) or not 0 <= value < MAX_NUMBER:
        raise ValueError(f"{name} is not a number of at least 0")
    number: Number = value
    return number
