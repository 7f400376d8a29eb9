"""The tree of shared prefixes, as `plan` and `inspect-cache` draw it."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from pagedrun.cli.terminal.safe_text import safe
from pagedrun.cli.terminal.sizes import show_size
from pagedrun.paged.planning.forecast_sections import SharedPrefix
from pagedrun.paged.report.inspect.inspection_sections import HeldPrefix

TEXT_CHARS = 60


def draw_prefixes(console: Console, prefixes: Sequence[SharedPrefix | HeldPrefix]) -> None:
    """Print the prefixes below each other's `parent`, which is a place in `prefixes` or None.

    Each has `tokens`, `rows` and `tokens_saved`; it may have `bytes_saved` and a `text`.
    """
    tree = Tree(Text("  largest savings"), guide_style="dim")
    nodes: dict[int | None, Tree] = {None: tree}
    # A prefix may come before the shorter one that it continues.
    left = dict(enumerate(prefixes))
    while left:
        for place, prefix in list(left.items()):
            if prefix["parent"] in nodes:
                nodes[place] = nodes[prefix["parent"]].add(_line(prefix))
                del left[place]
    console.print(tree)


def _line(prefix: SharedPrefix | HeldPrefix) -> Text:
    shown = Text(no_wrap=True, overflow="ellipsis")
    shown.append(f"{prefix['tokens']:,} {'token' if prefix['tokens'] == 1 else 'tokens'}", "bold")
    shown.append(f" × {prefix['rows']:,} rows, saves {prefix['tokens_saved']:,}")
    if "bytes_saved" in prefix:
        shown.append(f" ({show_size(prefix['bytes_saved'])})")
    if text := prefix.get("text"):
        shown.append(f"  {safe(' '.join(text.split()), TEXT_CHARS)}", "dim")
    return shown
