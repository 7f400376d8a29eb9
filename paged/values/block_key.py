"""BlockKey: the name of a block's content, by which rows find what others have computed."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

ROOT_DIGEST = hashlib.sha256(b"pagedrun prefix root").digest()
DIGEST_BYTES = len(ROOT_DIGEST)


@dataclass(frozen=True, slots=True)
class BlockKey:
    """Names the content of one full block: its tokens and, through the chain, all before them.

    `digest` = SHA-256(parent digest ‖ tokens as little-endian int32). A fixed-width encoding of a
    fixed number of tokens leaves no two token lists with the same bytes. A cryptographic hash,
    because prompts come from strangers and a collision would hand one row another row's keys.
    """

    digest: bytes
    parent: bytes
    token_ids: tuple[int, ...]

    @classmethod
    def chain(
        cls, token_ids: Sequence[int], block_size: int, known: Sequence["BlockKey"] = ()
    ) -> list["BlockKey"]:
        """Return the keys of every full block of `token_ids`, first to last.

        `known` are the keys of its first blocks, as far as another prompt has them already.
        """
        keys = list(known)
        parent = keys[-1].digest if keys else ROOT_DIGEST
        begin = len(keys) * block_size
        for start in range(begin, len(token_ids) - block_size + 1, block_size):
            keys.append(cls.after(parent, tuple(token_ids[start : start + block_size])))
            parent = keys[-1].digest
        return keys

    @classmethod
    def after(cls, parent: bytes, token_ids: tuple[int, ...]) -> "BlockKey":
        """Return the key of the block that follows the one with digest `parent`."""
        return cls(block_digest(parent, token_ids), parent, token_ids)


def block_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the digest of the block that follows the one with digest `parent`; see `BlockKey`."""
    return hashlib.sha256(parent + array("i", token_ids).tobytes()).digest()
