"""The frame around every result: what was run, where, with which versions, and when."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pagedrun import __version__
from pagedrun.paged.bench.spread import Spread
from pagedrun.paged.planning.memory import HostMemory
from pagedrun.paged.report.record.hardware import describe_hardware


def framed(bench: str, command: str, began: datetime, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a benchmark with what is needed to compare them with others'.

    `figures` name the device, see `DeviceFacts`. `command` is the line that was typed, `began`
    when. `load_average` is how many processes wanted to run over the last 1, 5 and 15 minutes, this
    one included: on a quiet machine, not more than it has threads.
    """
    hardware = describe_hardware(figures["device"]["type"])
    return {
        "bench": bench,
        "command": command,
        "began": began.astimezone(UTC).isoformat(timespec="seconds"),
        "seconds": (datetime.now(UTC) - began).total_seconds(),
        "hardware": {
            **hardware,
            "versions": {**hardware["versions"], "pagedrun": __version__},
            "memory": HostMemory.read().total,
            "load_average": list(os.getloadavg()),
        },
        **figures,
    }


def plain_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's settings without the model's place, which the model's part names."""
    return {name: value for name, value in fields.items() if name != "model"}


def plain_spread(spread: Spread | None) -> dict[str, Any] | None:
    """Return a spread as a result states it."""
    return spread.to_dict() if spread else None
