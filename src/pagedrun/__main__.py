"""The `pagedrun` command, also as `python -m pagedrun`: signals first, then everything else.

Importing what the command needs takes longer than many a user waits before pressing Ctrl-C.
"""

import os
import signal
import sys

from pagedrun.cli.terminal.json_lines import JsonLines, json_line, json_stderr, wants_json_lines
from pagedrun.paged.job.signals import (
    NOTHING_WRITTEN,
    SIGNALS,
    JobInterrupted,
    SignalGuard,
    Watchdog,
    exit_status,
)

# Of a live display: take away its last line, and give back the cursor that it hides.
CLEAN_LINE = "\r\x1b[J\x1b[?25h"


def main() -> None:
    """Run the command line and exit with its status."""
    status: int | None = None
    guard = SignalGuard(Watchdog(say))
    try:
        with guard, json_stderr(sys.argv[1:]):
            from pagedrun.cli.main import run

            status = run(guard)
    except JobInterrupted as interruption:
        say(f"{interruption}; {NOTHING_WRITTEN}")
    if guard.interruption is not None:
        # Whatever became of it on the way up: a library may turn it into an error of its own. And
        # at once, because threads that libraries started could keep an interpreter from ending.
        leave(exit_status(guard.interruption))
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, signal.SIG_DFL)  # nothing is left that it could spoil
    sys.exit(status)


def say(sentence: str) -> None:
    """Write a sentence to stderr, whatever state the program is in."""
    try:
        if isinstance(sys.stderr, JsonLines) or wants_json_lines(sys.argv[1:]):
            line = json_line("error", message=sentence.removeprefix("Error: "))
        else:
            line = f"{CLEAN_LINE if os.isatty(2) else ''}{sentence}\n"
        os.write(2, line.encode("utf-8", "replace"))
    except OSError:
        return  # nobody listens


def leave(status: int) -> None:
    """End the process with what was printed, and without anything else."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(status)


if __name__ == "__main__":
    main()
