"""BlockNames: the keys of the blocks that another row of the window may ask for."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.values.block_key import DIGEST_BYTES, ROOT_DIGEST, BlockKey, block_digest

Int64s = NDArray[np.int64]


class BlockNames:
    """Iterate it for each row's keys, in run order; rows next to each other share the objects.

    What takes time, the hashing, is done when it is built: by whoever plans, not by whoever runs.
    A window may have millions of keys. Their digests are kept in one piece, each once, and objects
    are made of them one row at a time.
    """

    def __init__(
        self,
        prompts: Seq[tuple[int, ...]],
        num_keys: Int64s,
        num_known: Int64s,
        block_size: int,
    ) -> None:
        """Name the first `num_keys` blocks of each prompt.

        prompts: in run order. num_keys: [num_rows] int64. num_known: [num_rows] int64, those of
        them that the row before has a key of as well; 0 for the first.
        """
        self._prompts = prompts
        self._num_keys = num_keys
        self._num_known = num_known
        self._block_size = block_size
        self._digests = self._hashed()

    def __iter__(self) -> Iterator[tuple[BlockKey, ...]]:
        keys: tuple[BlockKey, ...] = ()
        begin = 0
        counts = zip(self._num_known.tolist(), self._num_keys.tolist(), strict=True)
        for prompt, (num_known, num_keys) in zip(self._prompts, counts, strict=True):
            keys = keys[:num_known]
            if num_keys > num_known:
                end = begin + (num_keys - num_known) * DIGEST_BYTES
                keys += self._made(keys, prompt, self._digests[begin:end])
                begin = end
            yield keys

    def _made(
        self, known: tuple[BlockKey, ...], prompt: tuple[int, ...], digests: bytes
    ) -> tuple[BlockKey, ...]:
        """Return the keys with these digests, which follow the `known` ones of a prompt."""
        size, made = self._block_size, []
        parent = known[-1].digest if known else ROOT_DIGEST
        start = len(known) * size
        for place in range(0, len(digests), DIGEST_BYTES):
            digest = digests[place : place + DIGEST_BYTES]
            made.append(BlockKey(digest, parent, prompt[start : start + size]))
            parent = digest
            start += size
        return tuple(made)

    def _hashed(self) -> bytes:
        """Return the digests of what each row names and the row before does not, row by row."""
        size, digests = self._block_size, bytearray()
        path: list[bytes] = []  # of the row that named something last
        (naming,) = np.nonzero(self._num_keys > self._num_known)
        for row in naming.tolist():
            prompt, num_known = self._prompts[row], int(self._num_known[row])
            # The rows between named nothing of their own: this one has its known keys from there.
            del path[num_known:]
            parent = path[-1] if path else ROOT_DIGEST
            for start in range(num_known * size, int(self._num_keys[row]) * size, size):
                parent = block_digest(parent, prompt[start : start + size])
                path.append(parent)
                digests += parent
        return bytes(digests)
