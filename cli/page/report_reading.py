"""ReportReading: a report read back from a file that anybody may have changed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

from pagedrun.paged.report.record.report_sections import (
    CopyCounts,
    GroupFigures,
    KVFigures,
    MemoryFigures,
    PreemptionCounts,
    PrefixFigures,
    RowCounts,
    Section,
    TimeFigures,
    TokenFigures,
    section_of,
)

LedgerPart = Literal["weights", "kv_pool", "activations_peak", "other", "free"]
LEDGER: tuple[LedgerPart, ...] = ("weights", "kv_pool", "activations_peak", "other", "free")


class Timeline(TypedDict):
    """The report's `timeline` as columns, equally long; one that nobody knows is empty."""

    t: list[float]
    step: list[float]
    running: list[float]
    waiting: list[float]
    blocks_used: list[float]
    blocks_shared: list[float]
    blocks_cached: list[float]
    tokens: list[float]


@dataclass(frozen=True, slots=True)
class ReportReading:
    """The sections of a report (the object in `OUT.report.json`), whatever is in it.

    A figure that is not there, or is no finite number, is 0.
    """

    report: Mapping[str, object]

    @property
    def rows(self) -> RowCounts:
        """How the rows ended."""
        return self._section("rows", RowCounts)

    @property
    def tokens(self) -> TokenFigures:
        """What was computed."""
        return self._section("tokens", TokenFigures)

    @property
    def time(self) -> TimeFigures:
        """How long it took."""
        return self._section("time", TimeFigures)

    @property
    def kv(self) -> KVFigures:
        """What the pool held."""
        return self._section("kv", KVFigures)

    @property
    def prefix(self) -> PrefixFigures:
        """What sharing gave."""
        return self._section("prefix", PrefixFigures)

    @property
    def copy_on_write(self) -> CopyCounts:
        """What was copied to be written to."""
        return self._section("copy_on_write", CopyCounts)

    @property
    def preemptions(self) -> PreemptionCounts:
        """How often a row gave way."""
        return self._section("preemptions", PreemptionCounts)

    @property
    def ledger(self) -> dict[LedgerPart, int]:
        """Where the bytes went, by the report's names, in its order."""
        memory = self._section("memory", MemoryFigures)
        return {name: memory[name] for name in LEDGER}

    def groups(self) -> list[GroupFigures]:
        """Return the pools of a model with several groups of layers."""
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
        """Return the figures of an object by name; names are whatever the report has."""
        return {str(name): _number(value) for name, value in self._object(part).items()}

    def texts(self, part: str) -> dict[str, str]:
        """Return what an object of the report says, by name, as text; objects in it are opened."""
        lines: dict[str, str] = {}
        for name, value in self._object(part).items():
            inside = value if isinstance(value, dict) else {"": value}
            lines |= {f"{name} {each}".rstrip(): str(told) for each, told in inside.items()}
        return lines

    def advice(self) -> list[str]:
        """Return what the report advises, a sentence or two each."""
        found = self.report.get("advice")
        each = found if isinstance(found, list) else []
        return [str(one["sentence"]) for one in each if isinstance(one, dict) and "sentence" in one]

    def timeline(self) -> Timeline:
        """Return the timeline as columns."""
        found = self.report.get("timeline")
        each = found if isinstance(found, list) else []
        records = [one for one in each if isinstance(one, dict)]
        return section_of(Timeline, lambda name: [_number(one.get(name)) for one in records])

    def _section(self, part: str, kind: type[Section]) -> Section:
        found = self._object(part)
        return section_of(kind, lambda name: _number(found.get(name)))

    def _object(self, part: str) -> Mapping[str, object]:
        """Return an object of the report, empty if there is none."""
        found = self.report.get(part)
        return found if isinstance(found, dict) else {}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return value if abs(value) <= 2**53 and math.isfinite(value) else 0
