"""Alone: rows that read their whole context for themselves, though they share it.

`--no-prefix-once` is not that. So that it gives the same bytes, it does the matrix products of
shared reading for one row at a time, which is several times slower than the kernel of rows that
have nothing to share. What reading once is worth must be measured against that kernel.
"""

from dataclasses import replace

from pagedrun.kernels.attention.read_once import NEVER
from pagedrun.paged.execution.engine import Engine


def reading_alone(engine: Engine) -> Engine:
    """Return an engine on the same weights in whose plans no prefix is read together.

    Its decode steps have shapes of their own, so that it replays no step that was captured for rows
    which read together.
    """
    return Engine(engine.config, engine.loaded, replace(engine.policy, read_once=NEVER))
