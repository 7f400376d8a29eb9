"""Make the pictures of screens under docs/screens: `python docs/screens.py`, from a checkout.

The commands run here, on a terminal as wide as its picture; Rich draws what they print.
"""

import os
import pty
import struct
import subprocess
import sys
import tempfile
from fcntl import ioctl
from io import StringIO
from pathlib import Path
from termios import TIOCSWINSZ

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI, TerminalTheme
from rich.text import Text

DOCS = Path(__file__).parent
ROWS = "prompts.jsonl"
THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": DIMMED_MONOKAI}
COMMANDS = {
    "generate": ["generate", ROWS, "--model", "demo", "--progress", "none", "--overwrite"],
    "plan": ["plan", ROWS, "--model", "demo", "--max-tokens", "32", "--progress", "none"],
    "show": ["show", ROWS, "--model", "demo", "--row", "17", "--progress", "none"],
}


def on_a_terminal(words: list[str], folder: Path, width: int) -> str:
    """Return what a command prints on a terminal, escapes included.

    Raises `CalledProcessError` if it fails.
    """
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 100, width, 0, 0))
    command = [sys.executable, "-m", "pagedrun", *words]
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm-256color"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as run:
        os.close(theirs)
        printed = b""
        try:
            while part := os.read(ours, 65536):
                printed += part
        except OSError:  # the other end is closed: the command has ended
            pass
    os.close(ours)
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, command, printed)
    return printed.decode().replace("\r\n", "\n")


def picture(printed: str, title: str, width: int, theme: TerminalTheme) -> str:
    """Return an SVG of what was printed."""
    console = Console(
        width=width, record=True, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi(printed), overflow="fold")
    return console.export_svg(title=title, theme=theme, unique_id=title.split()[1])


def main() -> None:
    """Write a picture of each command, narrow and light and wide and dark."""
    (DOCS / "screens").mkdir(exist_ok=True)
    rows = (DOCS.parent / "recipes" / "demo" / "prompts.jsonl").read_bytes()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / ROWS).write_bytes(rows)
        for command, words in COMMANDS.items():
            for width, theme in ((80, "light"), (140, "dark")):
                printed = on_a_terminal(words, folder, width)
                drawn = picture(printed, f"pagedrun {command}", width, THEMES[theme])
                (DOCS / "screens" / f"{command}-{width}-{theme}.svg").write_text(drawn)


if __name__ == "__main__":
    main()
