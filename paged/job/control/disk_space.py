"""What rows take on the disk, told before they are computed, and after the disk was full."""

import errno
import os
from collections.abc import Sequence

from pagedrun.paged.job.output.output_file import OutputError, OutputFile
from pagedrun.paged.job.prompts.requests import JobRow

LEAST_ROW_BYTES = 220  # the keys of an output row, whatever is in it
TOKEN_BYTES = 10  # of an answer: its id and its part of the text
FULL = (errno.ENOSPC, errno.EDQUOT)


def space_warning(output: OutputFile, rows: Sequence[JobRow], *, copies: int) -> str | None:
    """Return a warning if the output's disk clearly has too little room for `rows`.

    copies: how often a row is written before the first of them goes.
    """
    if not output.is_regular:
        return None
    least = len(rows) * LEAST_ROW_BYTES * copies
    try:
        found = os.statvfs(output.path)
    except OSError:
        return None
    free = found.f_bavail * found.f_frsize
    if free >= least:
        return None
    asked = [row.request.params for row in rows if row.request is not None]
    most = least + sum(params.max_tokens * params.n for params in asked) * TOKEN_BYTES * copies
    return (
        f"{output.path}: the disk has {_size(free)} left, but {len(rows):,} rows take at "
        f"least {_size(least)}, and up to {_size(most)} if all answers reach their "
        "limits; if the disk becomes full, the run stops and can be resumed"
    )


def missing_space(error: OutputError, num_bytes: int, num_rows: int, num_left: int) -> str | None:
    """Return how much room the rows that are left need, if it is that what they lack.

    num_bytes, num_rows: what is in the output.
    """
    if error.errno not in FULL or not num_rows or not num_left:
        return None
    return f"the remaining rows will take about {_size(num_left * num_bytes // num_rows)}"


def _size(num_bytes: int) -> str:
    if num_bytes < 1024:
        return f"{num_bytes} bytes"
    for unit, scale in (("KiB", 10), ("MiB", 20)):
        if num_bytes < 1024 << scale:
            return f"{num_bytes / (1 << scale):.1f} {unit}"
    return f"{num_bytes / (1 << 30):,.1f} GiB"
