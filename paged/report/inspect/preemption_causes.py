"""Why a sequence gave way, in words."""

from collections.abc import Collection
from typing import cast

from pagedrun.paged.report.inspect.inspection_sections import PreemptionEvent, PreemptionRecord
from pagedrun.paged.report.record.snapshot_tables import Preemptions


def preemption_events(
    preemptions: Preemptions, beam_rows: Collection[int] = ()
) -> list[PreemptionEvent]:
    """Return each preemption as an object that JSON can hold, its cause in words included.

    beam_rows: those whose samples are beams, which give way together.
    """
    records = cast(list[PreemptionRecord], preemptions.records())
    return [{**each, "cause": _cause(each, each["row"] in beam_rows)} for each in records]


def _cause(event: PreemptionRecord, is_beam: bool) -> str:
    way = "swap to host memory" if event["swapped"] else "dropping and recomputing them"
    who = f"row {event['row']}"
    if is_beam:
        who += f" (beam {event['sample']}, together with the others)"
    elif event["sample"]:
        who += f" (sample {event['sample']})"
    gave = f"{who} gave up {_count(event['blocks'], 'block')} ({_count(event['tokens'], 'token')})"
    if event["for_row"] < 0:
        return f"step {event['step']:,}: {gave} by {way}"
    other = "it" if event["for_row"] == event["row"] else f"row {event['for_row']}"
    needed = f"{other} needed {_count(event['needed'], 'block')}"
    free = f"{event['free']:,} {'was' if event['free'] == 1 else 'were'} free"
    return f"step {event['step']:,}: {gave} by {way}, because {needed} and {free}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
