"""Exit statuses and error messages of commands."""

import math
import os
import resource
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from pagedrun.cli.terminal.console import safe, stderr_console, tell
from pagedrun.cli.terminal.json_lines import JsonLines
from pagedrun.paged.job.output.output_file import OutputError
from pagedrun.paged.job.signals import JobInterrupted, SignalGuard, exit_status
from pagedrun.paged.values.errors import (
    EngineError,
    PagedrunError,
    RowError,
    UsageError,
    as_flag,
    spelled,
)

OK = 0
ENGINE_FAILED = 1
REFUSED = 2
ROWS_FAILED = 3
STOPPED_EARLY = 4
INTERRUPTED = 130

# Most specific first. A `RowError` here was raised for a flag, not for a row.
_STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (UsageError, REFUSED),
    (RowError, REFUSED),
    (OutputError, STOPPED_EARLY),
    (EngineError, ENGINE_FAILED),
    (PagedrunError, ENGINE_FAILED),
    (BrokenPipeError, STOPPED_EARLY),
    (KeyboardInterrupt, INTERRUPTED),
    (MemoryError, ENGINE_FAILED),
    (Exception, ENGINE_FAILED),
)
DEBUG_VARIABLE = "PAGEDRUN_DEBUG"
# Bytes of address space. With 1.1 to 1.4 GB a command on two threads never got beyond the loading
# of PyTorch 2.13, Numba and SciPy; with 1.6 GB it did.
_LIBRARIES_RESERVE = 3 * 2**29


@contextmanager
def boundary(guard: SignalGuard | None = None) -> Iterator[None]:
    """Convert any error into one sentence on stderr and an exit status.

    An interruption recorded by `guard` takes precedence, since a library may have replaced it by
    another error. Commands that run a model pass one: they are refused where the libraries do not
    fit the address space (`ulimit -v`).
    """
    try:
        # OpenBLAS, while it is loaded, asks for its memory again and again until it gets it.
        if guard is not None and _address_space() < _LIBRARIES_RESERVE:
            raise MemoryError
        yield
    except typer.Exit:
        raise
    except BaseException as raised:
        error = raised
        if guard is not None and guard.interruption is not None:
            error = guard.interruption
        if not isinstance(error, Exception | KeyboardInterrupt | JobInterrupted):
            raise
        if os.environ.get(DEBUG_VARIABLE) == "1":
            traceback.print_exc()
        sentence = describe(error)
        is_told = (
            isinstance(error, JobInterrupted) and guard is not None and not guard.claim_message()
        )
        if sentence is not None and not is_told:
            _say(sentence)
        raise typer.Exit(status_of(error)) from error


def _say(sentence: str) -> None:
    if isinstance(sys.stderr, JsonLines):  # recognizes errors by their prefix
        sentence = f"Error: {sentence.removeprefix('Error: ')}"
    tell(stderr_console(), sentence)


def status_of(error: BaseException) -> int:
    """Return the exit status for `error`."""
    if isinstance(error, JobInterrupted):
        return exit_status(error.signum)
    return next(status for kind, status in _STATUSES if isinstance(error, kind))


def describe(error: BaseException) -> str | None:
    """Return the message for the user; None after the reader of a pipe has closed it."""
    if isinstance(error, BrokenPipeError) or isinstance(error.__cause__, BrokenPipeError):
        return None
    if isinstance(error, PagedrunError):
        return "; ".join([f"Error: {safe(error.shown(as_flag))}", *_notes(error)])
    if isinstance(error, JobInterrupted):
        notes = _notes(error) or ["nothing was written"]
        return "; ".join([str(error), *notes])
    if isinstance(error, KeyboardInterrupt):
        return "Stopped."
    limit = _address_space()
    if limit < math.inf and _is_out_of_address_space(error):
        return (
            "Error: out of memory: the address space of a process is limited to "
            f"{limit / 2**30:.2f} GiB (ulimit -v), and libraries reserve more of it than they use; "
            "raise the limit, or run ulimit -v unlimited"
        )
    if isinstance(error, MemoryError):
        return (
            "Error: out of memory; lower --kv-cache-memory-bytes, --max-num-seqs or "
            "--max-num-batched-tokens"
        )
    told = "".join(f"; {note}" for note in _notes(error))
    return (
        f"Error: {type(error).__name__}: {safe(str(error))} (a fault of pagedrun; "
        f"{DEBUG_VARIABLE}=1 shows where, please report it){told}"
    )


def _address_space() -> float:
    """Return how many bytes of addresses this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _is_out_of_address_space(error: BaseException) -> bool:
    """Return whether memory is missing, or a shared library could not be loaded, perhaps for it."""
    is_import = isinstance(error, ImportError | OSError) and "shared object" in str(error)
    return isinstance(error, MemoryError) or is_import


def _notes(error: BaseException) -> list[str]:
    """Return the notes that the job has added to the error."""
    notes = getattr(error, "__notes__", [])
    return [safe(spelled(note, as_flag)) for note in notes]
