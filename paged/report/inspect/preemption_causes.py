"""Why a sequence gave way, in words."""

from typing import Any

from pagedrun.paged.report.record.snapshot_tables import Preemptions


def preemption_events(preemptions: Preemptions) -> list[dict[str, Any]]:
    """Return each preemption as an object that JSON can hold, its cause in words included."""
    columns = {name: column.tolist() for name, column in preemptions.columns().items()}
    events = [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]
    return [event | {"cause": _cause(event)} for event in events]


def _cause(event: dict[str, Any]) -> str:
    way = "swap to host memory" if event["swapped"] else "dropping them, to compute them again"
    who = f"row {event['row']}" + (f" (sample {event['sample']})" if event["sample"] else "")
    gave = f"{who} gave up {_count(event['blocks'], 'block')} ({_count(event['tokens'], 'token')})"
    if event["for_row"] < 0:
        return f"step {event['step']:,}: {gave} by {way}"
    other = "it" if event["for_row"] == event["row"] else f"row {event['for_row']}"
    needed = f"{other} needed {_count(event['needed'], 'block')}"
    free = f"{event['free']:,} {'was' if event['free'] == 1 else 'were'} free"
    return f"step {event['step']:,}: {gave} by {way}, because {needed} and {free}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
