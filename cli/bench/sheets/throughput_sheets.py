"""The result of `bench throughput` as tables."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Literal

from pagedrun.cli.bench.sheets.device_sheets import device_sheets
from pagedrun.cli.bench.sheets.sheet import Sheet
from pagedrun.cli.bench.sheets.spread_text import (
    NOTHING,
    show_ms,
    show_number,
    show_ratio,
    show_spread,
    show_tokens,
)
from pagedrun.cli.terminal.units import show_size

if TYPE_CHECKING:
    from pagedrun.paged.bench.runs.figures import RunRecord
    from pagedrun.paged.bench.runs.throughput import ContenderSummary, ThroughputBenchFigures


def throughput_sheets(result: "ThroughputBenchFigures") -> list[Sheet]:
    """Return the tables: figures, then ratios and time by op where they were asked for."""
    sheets = [_figures(result)]
    if result["ratios"]:
        sheets.append(_ratios(result))
    if result["profile"]:
        on_gpu = any("device_profile" in each for each in result["contenders"])
        sheets += device_sheets(result) if on_gpu else _profiles(result)
    return sheets


def describe_rows(result: "ThroughputBenchFigures") -> str:
    """Return the workload in a line."""
    rows = result["workload"]
    size = rows["group_size"]
    groups = f", {size} rows a group" if size is not None else ""
    return (
        f"{rows['rows']:,} rows x ({rows['shared']:,} shared + "
        f"{show_tokens(rows['unique'])} unique + {show_tokens(rows['output'])} out){groups}; "
        "random tokens, greedy"
    )


def _figures(result: "ThroughputBenchFigures") -> Sheet:
    contenders = result["contenders"]

    def row(label: str, show: "Callable[[ContenderSummary, RunRecord], str]") -> tuple[str, ...]:
        """Return a line; `show` gets a contender's summary and its last run."""
        return (label, *(show(each["summary"], each["runs"][-1]) for each in contenders))

    rows = [
        row("total, s", lambda summary, _: show_spread(summary["total_s"], show_number)),
        row("prompt tokens/s", lambda s, _: show_spread(s["prompt_tokens_per_s"], show_number)),
        row("generated tokens/s", _generated),
        row("prefill, s", lambda summary, _: show_spread(summary["prefill_s"], show_number)),
        row("decode step, ms", lambda summary, _: show_spread(summary["decode_step_s"], show_ms)),
        row("rows in that step", lambda _, run: f"{run['decode_rows']:,}"),
        row("hit rate", lambda _, run: _of(run, "hit_rate", "{:.1%}")),
        row("blocks at peak", lambda _, run: _of(run, "peak_blocks", "{:,}")),
        row("CPUs busy elsewhere", lambda _, run: _of(run, "others_busy", "{:.1f}")),
        row("preemptions", lambda _, run: _of(run, "preemptions", "{:,}")),
    ]
    peaks = [run["peak_memory"] for each in contenders for run in each["runs"]]
    return Sheet(
        "Throughput",
        ("", *(each["name"] for each in contenders)),
        rows,
        f"Middle of {result['repeat']} (least…most). Cached prompt tokens count. Peak memory of "
        f"the process: {show_size(max(peaks))}."
        if result["repeat"] > 1
        else f"Cached prompt tokens count. Peak memory of the process: {show_size(max(peaks))}.",
    )


def _generated(summary: "ContenderSummary", _: "RunRecord") -> str:
    return show_spread(summary["generated_tokens_per_s"], show_number)


def _of(
    run: "RunRecord",
    key: Literal["hit_rate", "peak_blocks", "others_busy", "preemptions"],
    form: str,
) -> str:
    figure = run.get(key)
    return NOTHING if figure is None else form.format(figure)


def _ratios(result: "ThroughputBenchFigures") -> Sheet:
    rows = [
        (
            f"than {ratio['name']}",
            show_spread(ratio["end_to_end"], show_ratio),
            show_spread(ratio["prefill"], show_ratio),
            show_spread(ratio["decode"], show_ratio),
            f"{ratio['rows_alike']:,} of {ratio['rows']:,}",
        )
        for ratio in result["ratios"]
    ]
    return Sheet(
        "pagedrun is faster",
        ("", "end to end", "prefill", "decode", "rows alike"),
        rows,
        "Ratios of times, turn by turn. Decode: seconds for each row's next token. Rows "
        "alike: those with the same tokens; other programs round differently.",
    )


def _profiles(result: "ThroughputBenchFigures") -> list[Sheet]:
    timed = [each for each in result["contenders"] if each["runs"][-1].get("ops")]
    header = ("op", *(each["name"] for each in timed))
    runs = [each["runs"][-1] for each in timed]
    whole = [(run["total_s"], run["ops"]) for run in runs]
    steps = [_of_a_step(run) for run in runs]
    return [
        Sheet("Time by operation, s", header, _ops(whole, "{:.3f}".format), "The last run."),
        Sheet("Time of a decode step, ms", header, _ops(steps, show_ms)),
    ]


def _of_a_step(run: "RunRecord") -> tuple[float, dict[str, float]]:
    """Return the mean seconds of a decode step, and of each op in one."""
    steps = run["decode_step"]
    if steps is None:
        return 0.0, {}
    return steps["mean"], {op: each / steps["count"] for op, each in run["decode_ops"].items()}


def _ops(
    each: Seq[tuple[float, Mapping[str, float]]], show: Callable[[float], str]
) -> list[Seq[str]]:
    """Return a line for each op, the dearest first, and one for the rest of the whole."""
    most = {op: max(ops.get(op, 0.0) for _, ops in each) for _, ops in each for op in ops}
    rows: list[Seq[str]] = [
        (op, *(show(ops[op]) if op in ops else NOTHING for _, ops in each))
        for op in sorted(most, key=lambda op: -most[op])
    ]
    rest = [max(whole - sum(ops.values()), 0.0) for whole, ops in each]
    return [*rows, ("everything else", *map(show, rest))]
