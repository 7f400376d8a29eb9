"""Values in pieces that travel inside Ray's messages, and never through its object store.

What is larger than 100 KB goes into the store of the node that made it: it is lost with this node,
and where the store and the disk behind it are full, Ray refuses it. Pickling adds no danger: all
messages of Ray's are pickles, and only processes with the token of the cluster send any.
"""

import pickle
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from typing import Any

PIECE_BYTES = 64 * 1024
CALL_PIECES = 64  # in one call, which may have 10 MB


def in_pieces(value: object) -> list[bytes]:
    """Return a value, pickled and cut; there is at least one piece."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return [data[begin : begin + PIECE_BYTES] for begin in range(0, len(data), PIECE_BYTES)]


def in_calls(value: object) -> Iterator[tuple[int, int, Seq[bytes]]]:
    """Yield what each call carries of a value: which it is, of how many, and its pieces."""
    pieces = in_pieces(value)
    begins = range(0, len(pieces), CALL_PIECES)
    for place, begin in enumerate(begins):
        yield place, len(begins), pieces[begin : begin + CALL_PIECES]


def whole(pieces: Iterable[bytes]) -> Any:
    """Return the value that these are the pieces of, in order."""
    return pickle.loads(b"".join(pieces))
