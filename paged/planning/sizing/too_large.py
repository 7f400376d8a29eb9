"""Why a row is refused that no pool of a run can hold."""

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.option_names import option
from pagedrun.paged.values.request import Request


def too_large(request: Request, block_size: int, num_blocks: int) -> RowError:
    """Return the refusal of a request that needs more than the `num_blocks` of the pool."""
    needed = request.num_blocks_at_once(block_size)
    beams = f", {request.params.beam_width} times" if request.params.has_beams else ""
    return RowError(
        "kv_cache_too_small",
        f"the row needs {needed} blocks for its prompt and max_tokens{beams}, but the pool has "
        f"{num_blocks}; raise {option('num_blocks')} or {option('kv_cache_memory_bytes')}, or "
        f"lower {option('max_tokens')}",
    )
