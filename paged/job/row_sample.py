"""A sample of a file's rows, the same one every time."""

import random
from collections.abc import Mapping
from itertools import islice
from typing import Any

from pagedrun.paged.errors import RowError
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.json_line import parse_object
from pagedrun.paged.job.reader import open_input

SAMPLE_ROWS = 2000
SAMPLE_BYTES = 4 * 2**20


def sample_rows(config: JobConfig) -> list[Mapping[str, Any]]:
    """Return the columns of up to `SAMPLE_ROWS` rows and `SAMPLE_BYTES`, in the file's order.

    Every row within the job's limit is as likely to be in it as any other (J. Vitter, "Random
    sampling with a reservoir", 1985); lines that are no rows are left out.
    """
    draw = random.Random(0)
    kept: list[tuple[int, bytes]] = []
    with open_input(config.input) as stream:
        lines = (line for line in stream if not line.isspace())
        for index, line in enumerate(islice(lines, config.limit)):
            if len(kept) < SAMPLE_ROWS:
                kept.append((index, line))
                continue
            place = draw.randrange(index + 1)
            if place < SAMPLE_ROWS:
                kept[place] = (index, line)
    draw.shuffle(kept)  # so that cutting by bytes favours nobody
    chosen: list[tuple[int, Mapping[str, Any]]] = []
    num_bytes = 0
    for index, line in kept:
        num_bytes += len(line)
        if num_bytes > SAMPLE_BYTES and chosen:
            break
        try:
            chosen.append((index, parse_object(line.decode("utf-8").strip())))
        except (RowError, UnicodeDecodeError):
            continue
    return [columns for _, columns in sorted(chosen, key=lambda each: each[0])]
