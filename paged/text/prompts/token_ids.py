"""Token ids as users give them, checked before anything else is."""

from collections.abc import Sequence as Seq

from pagedrun.paged.values.errors import RowError

TOKEN_IDS = "prompt_token_ids"
NOT_LISTS = (str, bytes, bytearray, memoryview)  # sequences to Python


def checked_token_ids(value: object) -> tuple[int, ...]:
    """Return the ids of a prompt; raises `RowError` for anything but a list of integers.

    Whether the model has them is not looked at here, see `Request.fitted`.
    """
    items = value if isinstance(value, Seq) and not isinstance(value, NOT_LISTS) else [None]
    if all(type(item) is int for item in items):
        return tuple(items)
    raise RowError(
        "token_id_out_of_range", f"{TOKEN_IDS} must be a list of integers", param=TOKEN_IDS
    )
