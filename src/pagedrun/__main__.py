"""The `pagedrun` command, also as `python -m pagedrun`: installs signal handlers before imports.

The imports of a command may take longer than a user waits before pressing Ctrl-C.
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

# Clears the last line of a live display and shows the cursor.
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
        # A library may have replaced the exception by its own. Exits at once, because threads of
        # libraries could keep the interpreter alive.
        leave(exit_status(guard.interruption.signum))
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, signal.SIG_DFL)  # no work is left to protect
    sys.exit(status)


def say(sentence: str) -> None:
    """Write a sentence to stderr, in any state of the program."""
    try:
        if isinstance(sys.stderr, JsonLines) or wants_json_lines(sys.argv[1:]):
            line = json_line("error", message=sentence.removeprefix("Error: "))
        else:
            line = f"{CLEAN_LINE if os.isatty(2) else ''}{sentence}\n"
        os.write(2, line.encode("utf-8", "replace"))
    except OSError:
        return  # stderr is closed


def leave(status: int) -> None:
    """Exit the process at once, after flushing stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(status)


if __name__ == "__main__":
    main()
