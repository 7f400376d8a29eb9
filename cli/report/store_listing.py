"""Screen of `inspect-cache DIR`: the entries of a prefix store, and their removal."""

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pagedrun.cli.terminal.console import note, safe, stderr_console
from pagedrun.cli.terminal.units import counted, show_size
from pagedrun.paged.cache.prefix_store.listing import ListedEntry, StoreListing

MAX_WIDTH = 100
MODEL_CHARS = 26
DEFAULT_TOP = 20


def show_store(
    folder: Path,
    *,
    prune: bool,
    prune_to: int | None,
    top: int = DEFAULT_TOP,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """List the store in `folder`, pruned first under `prune` or to `prune_to` bytes.

    top: number of entries to print. Raises `UsageError` for a folder that is not a store.
    """
    if prune or prune_to is not None:
        listing = StoreListing.pruned(folder, prune_to)
    else:
        listing = StoreListing.read(folder)
    if not quiet:
        draw_store(listing, top, stderr_console())
    if as_json:
        json.dump(listing.to_dict(), sys.stdout, ensure_ascii=False, allow_nan=False)
        sys.stdout.write("\n")


def draw_store(listing: StoreListing, top: int, console: Console) -> None:
    """Print totals, removed files, and the most recently used entries."""
    told = listing.to_dict()
    note(
        console,
        f"Prefix store {listing.path}: {counted(len(listing.entries), 'file')}, "
        f"{told['tokens']:,} tokens, {show_size(told['bytes'])}",
        "bold",
    )
    if listing.removed:
        size = show_size(sum(each.use.num_bytes for each in listing.removed))
        note(console, f"Removed {counted(len(listing.removed), 'file')}, {size}")
        for each in listing.removed:
            note(console, f"  {each.use.path.name[:32]}…  {each.problem or 'least recently used'}")
    if listing.entries:
        _draw_table(listing.entries[:top], console)
    if len(listing.entries) > top:
        note(console, f"{len(listing.entries) - top:,} more, less recently used; --top shows more")
    if told["damaged"]:
        verb = "is" if told["damaged"] == 1 else "are"
        note(
            console,
            f"{counted(told['damaged'], 'file')} {verb} never used; --prune removes damaged files",
            "yellow",
        )


def _draw_table(entries: Sequence[ListedEntry], console: Console) -> None:
    table = Table(
        box=box.ASCII_DOUBLE_HEAD if console.options.ascii_only else box.SIMPLE_HEAD,
        width=min(console.width, MAX_WIDTH),
        pad_edge=False,
    )
    table.add_column("model", overflow="fold", ratio=1)
    for name in ("tokens", "size", "last use", "uses"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in entries:
        used = datetime.fromtimestamp(each.use.last_use_ns / 1e9).strftime("%Y-%m-%d %H:%M")
        size, uses = show_size(each.use.num_bytes), f"{each.use.num_uses:,}"
        table.add_row(_what(each), _tokens(each), size, used, uses)
    console.print(table)


def _what(each: ListedEntry) -> Text:
    """Return model and format of a file, or its problem."""
    name = safe(each.entry.identity.model, MODEL_CHARS) if each.entry is not None else ""
    if each.problem is not None:
        return Text(f"{name} {safe(each.problem)}".strip(), style="yellow")
    told = each.to_dict()
    return Text.assemble(name, (f" {told['kv_dtype']}, blocks of {told['block_size']}", "dim"))


def _tokens(each: ListedEntry) -> str:
    """Return the range of an entry's tokens, counted from 1; for a state the last one."""
    if each.entry is None:
        return "?"
    end = f"{each.entry.start + len(each.entry.token_ids):,}"
    return f"state after {end}" if each.entry.has_state else f"{each.entry.start + 1:,}–{end}"
