"""ReportReading: a report read back from a file that anybody may have changed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagedrun.paged.report.record.timeline import TIMELINE_KEYS

LEDGER = ("weights", "kv_pool", "activations_peak", "other", "free")


@dataclass(frozen=True, slots=True)
class ReportReading:
    """The figures of a report (the object in `OUT.report.json`): numbers, whatever is in it."""

    report: Mapping[str, Any]

    def number(self, part: str, name: str) -> float:
        """Return a figure, 0 for one that is not there or is no finite number."""
        return _number(self.group(part).get(name))

    def group(self, part: str) -> Mapping[str, Any]:
        """Return an object of the report, empty if there is none."""
        found = self.report.get(part)
        return found if isinstance(found, dict) else {}

    def numbers(self, part: str) -> dict[str, float]:
        """Return the figures of an object by name; names are whatever the report has."""
        return {str(name): _number(value) for name, value in self.group(part).items()}

    def texts(self, part: str) -> dict[str, str]:
        """Return what an object of the report says, by name, as text; objects in it are opened."""
        lines: dict[str, str] = {}
        for name, value in self.group(part).items():
            inside = value if isinstance(value, dict) else {"": value}
            lines |= {f"{name} {each}".rstrip(): str(told) for each, told in inside.items()}
        return lines

    def advice(self) -> list[str]:
        """Return what the report advises, a sentence or two each."""
        found = self.report.get("advice")
        each = found if isinstance(found, list) else []
        return [str(one["sentence"]) for one in each if isinstance(one, dict) and "sentence" in one]

    def timeline(self) -> dict[str, list[float]]:
        """Return the timeline as columns."""
        found = self.report.get("timeline")
        records = found if isinstance(found, list) else []
        return {
            name: [_number(each.get(name)) for each in records if isinstance(each, dict)]
            for name in TIMELINE_KEYS
        }

    def ledger(self) -> dict[str, float]:
        """Return where the bytes went, by the report's names, in its order."""
        return {name: self.number("memory", name) for name in LEDGER}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return value if abs(value) <= 2**53 and math.isfinite(value) else 0
