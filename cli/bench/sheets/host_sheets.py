"""The result of `bench host` as a table."""

from typing import TYPE_CHECKING

from pagedrun.cli.bench.sheets.sheet import Sheet
from pagedrun.cli.bench.sheets.spread_text import show_ms, show_number, show_spread, show_tokens

if TYPE_CHECKING:
    from pagedrun.paged.bench.host.host_figures import HostBenchFigures


def host_sheets(result: "HostBenchFigures") -> list[Sheet]:
    """Return the table: a line for each number of seats."""
    header = ("seats", "rows", "tokens/s", "decode, µs/row", "admission, ms", "total, s")
    rows = [
        (
            f"{point['seats']:,}",
            f"{point['rows']:,}",
            show_spread(point["tokens_per_s"], show_number),
            show_spread(point["decode_s_per_row"], _show_us),
            show_spread(point["admission_step_s"], show_ms),
            show_spread(point["total_s"], show_number),
        )
        for point in result["points"]
    ]
    of_several = f" Middle of {result['repeat']} runs (least…most)." if result["repeat"] > 1 else ""
    own = [
        Sheet(
            "The host's own work",
            header,
            rows,
            "Decode: median of steps in which all rows decode and none is admitted. "
            f"Admission: median of steps that admit rows.{of_several}",
        )
    ]
    return [*own, _launches(result)] if result["as_gpu"] else own


def _launches(result: "HostBenchFigures") -> Sheet:
    """Return what was asked of the device, step for step."""
    header = (
        *("seats", "steps", "host, ms/step", "with prompts", "replayed", "eager decode"),
        *("captured", "copies/step", "kB/step"),
    )
    rows = []
    for point in result["points"]:
        steps, asked = point["steps"], point["asked"]
        shares = (asked[name] / steps for name in ("prefills", "replays", "decodes"))
        rows.append(
            (
                f"{point['seats']:,}",
                f"{steps:,}",
                show_spread(point["step_s"], show_ms),
                *(f"{share:.0%}" for share in shares),
                f"{asked['captures']}",
                f"{asked['copies'] / steps:.1f}",
                f"{asked['bytes_copied'] / steps / 1000:,.0f}",
            )
        )
    return Sheet(
        "Work for a GPU",
        header,
        rows,
        "With prompts: steps that compute tokens of prompts. Replayed: steps whose "
        "generated tokens come from a captured step. Eager decode: steps that compute "
        "them kernel by kernel. Nothing is computed here, and copies are made by the "
        "host.",
    )


def describe_host_rows(result: "HostBenchFigures") -> str:
    """Return the workload in a line."""
    rows = result["workload"]
    return (
        f"{rows['rows_per_seat']} a seat x ({rows['shared']:,} shared + {rows['unique']:,} unique "
        f"+ {show_tokens(rows['output'])} out); random tokens, kernels that cost nothing"
    )


def _show_us(seconds: float) -> str:
    return show_number(seconds * 1e6)
