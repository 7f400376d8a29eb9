"""Screen of `diff`: comparison of two outputs."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from pagedrun.cli.terminal.console import safe

if TYPE_CHECKING:
    from pagedrun.paged.job.compare import Change, Comparison, OutputFigures, Side
    from pagedrun.paged.job.vector_comparison import VectorComparison, VectorFigures

_WHAT = {
    "error": "their errors",
    "text": "text",
    "finish_reason": "finish reason",
    "details": "tokens, scores or further samples",
}
_MIN_TEXT = 20  # characters


def draw_comparison(found: "Comparison", console: Console) -> None:
    """Print a comparison of two outputs."""
    for name, side in (("A", found["a"]), ("B", found["b"])):
        console.print(Text(f"{name}  {safe(side['path'])}"), soft_wrap=True)
        console.print(Text(f"   {_described(side)}", style="dim"), soft_wrap=True)
    rows = found["rows"]
    counts = ", ".join(f"{count:,} {kind}" for kind, count in rows.items() if count)
    style = "bold" if found["same"] else "bold yellow"
    told = f"matched by {found['matched_by']}: {counts or 'no rows'}"
    console.print(Text(told, style=style), soft_wrap=True)
    for what, count in found["changed_in"].items():
        console.print(Text(f"  {count:,} differ in {_WHAT[what]}"), soft_wrap=True)
    if found["gained"] or found["lost"]:
        told = f"  {found['gained']:,} now as expected, {found['lost']:,} no longer"
        console.print(Text(told), soft_wrap=True)
    for change in found["changes"]:
        for line in _change_lines(change, console.width):
            console.print(line, soft_wrap=True)
    _draw_ids("only in B", found["added"], rows["added"], console)
    _draw_ids("only in A", found["missing"], rows["missing"], console)
    left = rows["changed"] - len(found["changes"])
    if left:
        told = f"… and {left:,} more changed rows; --show {rows['changed']} shows all"
        console.print(Text(told, style="dim"), soft_wrap=True)


def draw_vector_comparison(found: "VectorComparison", console: Console) -> None:
    """Print a comparison of the vectors of two outputs."""
    for name, side in (("A", found["a"]), ("B", found["b"])):
        console.print(Text(f"{name}  {safe(side['path'])}"), soft_wrap=True)
        console.print(Text(f"   {_vectors(side)}", style="dim"), soft_wrap=True)
    style = "bold" if found["same"] else "bold yellow"
    told = f"matched by {found['matched_by']}: {found['compared']:,} vectors compared"
    if found["compared"]:
        told += f", {found['equal']:,} with the same numbers"
    console.print(Text(told, style=style), soft_wrap=True)
    if found["min_cosine"] is not None:
        told = f"  cosine at least {found['min_cosine']:.6f}, mean {found['mean_cosine']:.6f}"
        told += f"; {found['below']:,} below {found['threshold']:g}"
        console.print(Text(told), soft_wrap=True)
    counts = {
        "failed in A alone": found["failed_in_a"],
        "failed in B alone": found["failed_in_b"],
        "failed in both": found["failed_in_both"],
        "only in A": found["missing"],
        "only in B": found["added"],
    }
    if told := ", ".join(f"{count:,} {what}" for what, count in counts.items() if count):
        console.print(Text(f"  {told}"), soft_wrap=True)
    for each in found["lowest"]:
        where = f"row {each['b']}" if each["a"] == each["b"] else f"rows {each['a']}, {each['b']}"
        line = Text.assemble(
            ("  ", ""), (safe(str(each["id"])), "bold"), f"  {where}: cosine {each['cosine']:.6f}"
        )
        console.print(line, soft_wrap=True)
    left = found["below"] - len(found["lowest"])
    if left:
        told = f"… and {left:,} more below; --show {found['below']} shows all"
        console.print(Text(told, style="dim"), soft_wrap=True)


def _vectors(side: "VectorFigures") -> str:
    words = [f"{side['rows']:,} rows", f"{side['dimensions']:,} dimensions"]
    if side["failed"]:
        words.insert(1, f"{side['failed']:,} failed")
    if side["torn"]:
        words.append("the last line is incomplete")
    return ", ".join(words)


def _described(side: "OutputFigures") -> str:
    words = [f"{side['rows']:,} rows", f"{side['completion_tokens']:,} tokens"]
    if side["failed"]:
        words.insert(1, f"{side['failed']:,} failed")
    words += [f"{count:,} {safe(reason)}" for reason, count in side["finish_reasons"].items()]
    if side["expected"]:
        share = side["correct"] / side["expected"]
        words.append(f"{side['correct']:,} of {side['expected']:,} as expected ({share:.1%})")
    if side["torn"]:
        words.append("the last line is incomplete")
    return ", ".join(words)


def _change_lines(change: "Change", width: int) -> Iterator[Text]:
    a, b = change["a"], change["b"]
    rows = f"row {b['index']}" if a["index"] == b["index"] else f"rows {a['index']}, {b['index']}"
    at = "" if change["at"] is None else f" from character {change['at']:,} on"
    yield Text.assemble(
        "\n", (safe(str(change["id"])), "bold"), f"  {rows}: {_WHAT[change['what']]}{at}"
    )
    for name, side, style in (("A", a, "red"), ("B", b, "green")):
        ended = _ended(side)
        room = max(width - len(ended) - 7, _MIN_TEXT)
        shown = safe(side["text"] or "", room)
        yield Text.assemble((f"  {name}  ", style), shown[:room], (f"  {ended}", "dim"))


def _ended(side: "Side") -> str:
    if side["error"] is not None:
        return f"error {safe(side['error'])}"
    return f"{', '.join(map(safe, side['finish_reasons']))}, {side['tokens']:,} tokens"


def _draw_ids(where: str, ids: list[str | int], count: int, console: Console) -> None:
    if ids:
        more = ", …" if count > len(ids) else ""
        told = ", ".join(safe(str(each), 40) for each in ids)
        console.print(Text(f"\n{where}: {told}{more}"), soft_wrap=True)
