"""The result of `bench memory` as tables."""

from typing import TYPE_CHECKING, Literal

from pagedrun.cli.bench.sheets.sheet import Sheet
from pagedrun.cli.bench.sheets.spread_text import NOTHING, show_number, show_ratio
from pagedrun.cli.terminal.units import show_size

if TYPE_CHECKING:
    from pagedrun.paged.bench.memory.memory_figures import MemoryBenchFigures, SavedBlocks, Sharing

Way = Literal["contiguous", "paged"]
WAYS: tuple[Way, ...] = ("contiguous", "paged")
CHART_CHARS = 44
_Charted = Literal["running", "tokens", "blocks_used"]
DONE = "·"  # where a run is over while the other goes on


def memory_sheets(result: "MemoryBenchFigures") -> list[Sheet]:
    """Return the tables: at once, the system prompt, over time, and block sizes."""
    tables = memory_tables(result)
    block_sizes = tables.pop("block_sizes")
    return [*tables.values(), _charts(result), block_sizes]


def memory_tables(result: "MemoryBenchFigures") -> dict[str, Sheet]:
    """Return the tables that hold figures, by the result's own names for them."""
    found = result["sharing"]
    sharing = {} if found is None else {"sharing": _sharing(found)}
    return {
        "at_once": _at_once(result),
        **sharing,
        "over_time": _over_time(result),
        "block_sizes": _block_sizes(result),
    }


def describe_token(result: "MemoryBenchFigures") -> str:
    """Return the model that bytes are given for, in a line."""
    shape = result["shape"]
    return (
        f"{shape['bytes_per_token']:,} bytes of keys and values, in {shape['num_layers']} layers "
        f"of {shape['num_kv_heads']} kv heads of {shape['head_dim']}, {shape['dtype']} "
        f"({shape['name']})"
    )


def describe_requests(result: "MemoryBenchFigures") -> str:
    """Return the requests in a line."""
    lengths = result["lengths"]
    return (
        f"{lengths['low']:,} to {lengths['high']:,} tokens, normal around {lengths['mean']:g} with "
        f"deviation {lengths['std']:g}, seed {lengths['seed']}"
    )


def _at_once(result: "MemoryBenchFigures") -> Sheet:
    rows = [
        (
            f"{each['requests']:,}",
            f"{each['tokens']:,}",
            *(f"{each[way]['utilization']:.1%}" for way in WAYS),
            *(show_size(each[way]["bytes"]) for way in WAYS),
            show_ratio(each["contiguous"]["bytes"] / each["paged"]["bytes"]),
        )
        for each in result["at_once"]
    ]
    header = ("requests", "tokens", *WAYS, *WAYS, "less")
    return Sheet(
        "Memory that stores tokens, all requests at once",
        header,
        rows,
        f"Contiguous: {result['lengths']['high']:,} tokens reserved for each request. Paged: "
        f"blocks of {result['block_size']:,} tokens. Both are held in the engine's block pool.",
    )


def _sharing(sharing: "Sharing") -> Sheet:
    prompt = sharing["prompt"]
    saved: dict[str, SavedBlocks] = {
        "answers to one prompt": prompt,
        "rows that share it": sharing["rows"],
    }
    rows = [
        (
            name,
            f"{each['blocks_alone']:,}",
            f"{each['blocks']:,}",
            show_size(each["bytes_saved"]),
        )
        for name, each in saved.items()
    ]
    copied = f"{prompt['copies']} block{'' if prompt['copies'] == 1 else 's'} copied"
    return Sheet(
        f"A system prompt of {sharing['tokens']:,} tokens, {sharing['requests']:,} requests",
        ("", "blocks alone", "shared", "saved"),
        rows,
        f"When one of the answers continues: {copied}, {prompt['blocks_diverged']:,} "
        "held. Rows have as many tokens of their own as in the first line above, and "
        "share whole blocks.",
    )


def _over_time(result: "MemoryBenchFigures") -> Sheet:
    flows = result["over_time"]
    rows = [
        (
            way,
            f"{flow['max_running']:,}",
            show_number(flow["mean_running"]),
            f"{flow['utilization']:.1%}",
            f"{flow['memory_used']:.1%}",
            f"{flow['peak_blocks'] / flow['blocks']:.0%}",
            f"{flow['preemptions']:,}",
            f"{flow['steps']:,}",
        )
        for way, flow in ((way, flows[way]) for way in WAYS)
    ]
    contiguous, paged = (flows[way] for way in WAYS)
    gains = [
        _ratio(paged["max_running"], contiguous["max_running"]),
        _ratio(paged["mean_running"], contiguous["mean_running"]),
        _ratio(paged["utilization"], contiguous["utilization"]),
        _ratio(paged["memory_used"], contiguous["memory_used"]),
    ]
    fewer = _ratio(contiguous["steps"], paged["steps"])
    header = ("", "most", "in flight", "of held", "of all", "at peak", "preempted", "steps")
    return Sheet(
        f"{flows['requests']:,} requests that join and leave in {show_size(flows['memory_bytes'])}",
        header,
        [*rows, ("gain", *gains, NOTHING, NOTHING, fewer)],
        "Requests in flight; slots that store a token, of those held and of all; means "
        "over the run. At peak: blocks held of the pool's. Half of each request is its "
        "prompt. A step gives every request in flight one token; steps with more "
        "requests take longer, which is not measured here.",
    )


def _ratio(above: float, below: float) -> str:
    return show_ratio(above / below) if below else NOTHING


def _charts(result: "MemoryBenchFigures") -> Sheet:
    rows = [
        *_chart(result, "in flight", "running"),
        *_chart(result, "tokens stored", "tokens"),
        *_chart(result, "blocks held", "blocks_used"),
    ]
    return Sheet(
        "The same, from the first step to the last",
        ("", "over time", "highest"),
        rows,
        "Highest: among the steps drawn. Blocks: full height is the whole pool, of blocks of "
        f"{result['lengths']['high']:,} and of {result['block_size']:,} tokens. {DONE} All "
        "requests are done.",
    )


def _chart(result: "MemoryBenchFigures", name: str, key: _Charted) -> list[tuple[str, str, str]]:
    """Return a line for each way, on the same axes: steps, and what is counted.

    Blocks of different sizes are not the same; there, full height is all of the memory.
    """
    from pagedrun.cli.report.report_figures import sparkline

    flows = {way: result["over_time"][way] for way in WAYS}
    num_steps = max(flow["steps"] for flow in flows.values())
    values = {way: [each[key] for each in flow["timeline"]] for way, flow in flows.items()}
    highest = max(max(each) for each in values.values())
    width = min(CHART_CHARS, num_steps)
    rows = []
    for way, flow in flows.items():
        top = flow["blocks"] if key == "blocks_used" else highest
        num_chars = max(1, -(-width * flow["steps"] // num_steps))
        bars = sparkline(values[way], num_chars, top)
        rows.append((f"{name}, {way}", bars.ljust(width, DONE), f"{max(values[way]):,}"))
    return rows


def _block_sizes(result: "MemoryBenchFigures") -> Sheet:
    rows = [
        (
            f"{each['block_size']:,}",
            f"{each['utilization']:.1%}",
            show_size(each["bytes"]),
            f"{each['empty_per_request']:.1f}",
            f"{each['expected_empty']:.1f}",
            f"{each['over_time']['max_running']:,}",
            show_number(each["over_time"]["mean_running"]),
            f"{each['over_time']['steps']:,}",
        )
        for each in result["block_sizes"]
    ]
    flows = result["over_time"]
    header = ("size", "utilised", "held", "empty", "expected", "most", "in flight", "steps")
    return Sheet(
        f"Block sizes, {flows['requests']:,} requests",
        header,
        rows,
        "Utilized, held and empty slots of a request: all concurrently. Expected: (size "
        "- 1) / 2, half a block, if a request may end anywhere in its last block. Most, "
        "in flight and steps: as they join and leave.",
    )
