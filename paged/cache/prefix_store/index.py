"""PrefixIndex: which stored block may follow which, so that a prompt finds what is stored of it."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from pagedrun.paged.cache.prefix_store.entry import StoredPrefix
from pagedrun.paged.values.block_key import BlockKey


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block of a file: its place there, its tokens, and the digest of the block before it.

    `digest` is None for the block in which a prefix ends before the block does: no other follows.
    """

    file_name: str
    position: int
    parent: bytes
    token_ids: tuple[int, ...]
    digest: bytes | None


@dataclass(frozen=True, slots=True)
class Match:
    """A stored block and how many of its first tokens a prompt has."""

    block: StoredBlock
    num_tokens: int


class PrefixIndex:
    """Every block of the store that a run may use, found by the tokens before it and its own.

    Keys and values of a token depend on what is before it alone, so a block whose first tokens are
    a prompt's is of use up to there.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._after: dict[bytes, list[StoredBlock]] = {}  # sorted by their tokens
        self._blocks_of: dict[str, list[StoredBlock]] = {}
        self._state_behind: dict[bytes, str] = {}  # digest of a block → file

    def __len__(self) -> int:
        return len(self._blocks_of)

    def add(self, file_name: str, entry: StoredPrefix) -> None:
        """Take in a file."""
        size, parent = self._block_size, entry.parent
        blocks: list[StoredBlock] = []
        for start in range(0, len(entry.token_ids), size):
            tokens = entry.token_ids[start : start + size]
            digest = BlockKey.after(parent, tokens).digest if len(tokens) == size else None
            blocks.append(StoredBlock(file_name, len(blocks), parent, tokens, digest))
            parent = digest or b""
        if entry.has_state:
            self._state_behind[parent] = file_name
            blocks.clear()
        for block in blocks:
            insort(self._after.setdefault(block.parent, []), block, key=_tokens)
        self._blocks_of[file_name] = blocks

    def drop(self, file_name: str) -> None:
        """Forget a file."""
        for block in self._blocks_of.pop(file_name, ()):
            siblings = self._after[block.parent]
            siblings.remove(block)
            if not siblings:
                del self._after[block.parent]
        self._state_behind = {
            digest: name for digest, name in self._state_behind.items() if name != file_name
        }

    def state_behind(self, digest: bytes) -> str | None:
        """Return the file with the state behind a block and all before it."""
        return self._state_behind.get(digest)

    def matches(self, prompt: Sequence[int], begin: int, parent: bytes) -> list[Match]:
        """Return what is stored of a prompt from token `begin` on, block after block.

        begin: a block's border. parent: the digest of the block before it. All matches but the
        last are of whole blocks.
        """
        found: list[Match] = []
        next_parent: bytes | None = parent
        while next_parent is not None:
            tokens = tuple(prompt[begin : begin + self._block_size])
            best = self._best(self._after.get(next_parent, ()), tokens)
            if best is None:
                break
            found.append(best)
            begin += best.num_tokens
            next_parent = best.block.digest if best.num_tokens == self._block_size else None
        return found

    def _best(self, blocks: Sequence[StoredBlock], tokens: tuple[int, ...]) -> Match | None:
        """Return the block that has most first tokens in common with `tokens`, if any has one.

        Where blocks are sorted by their tokens it is next to where these would be.
        """
        best: Match | None = None
        place = bisect_left(blocks, tokens, key=_tokens)
        for block in blocks[max(place - 1, 0) : place + 1]:
            num_tokens = _num_common(block.token_ids, tokens)
            if num_tokens > (best.num_tokens if best else 0):
                best = Match(block, num_tokens)
        return best


def _tokens(block: StoredBlock) -> tuple[int, ...]:
    return block.token_ids


def _num_common(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    if one == two:
        return len(one)
    pairs = enumerate(zip(one, two, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(two)))
