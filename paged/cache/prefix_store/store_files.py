"""Files of the store: reading, checking and writing within a run, and the index of their blocks."""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import load, save
from torch import Tensor

from pagedrun.paged.cache.prefix_store.entry import DamagedEntryError, StoredPrefix
from pagedrun.paged.cache.prefix_store.folder import StoreFolder
from pagedrun.paged.values.errors import option
from pagedrun.paged.values.planned_request import BlockKey
from pagedrun.paged.values.report_parts import StoreFigures


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
        """Add a file."""
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
        """Remove a file."""
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
        """Return the stored blocks of a prompt from token `begin` on.

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


class StoreFiles:
    """Reads entries whole and checked, writes them below a limit, and keeps `index` true to both.

    `max_bytes` is what the store may come to hold. Nothing that goes wrong stops a run: `warn`
    is told of the first thing.
    """

    def __init__(
        self,
        folder: StoreFolder,
        index: PrefixIndex,
        max_bytes: int,
        warn: Callable[[str], None],
    ) -> None:
        self.figures: StoreFigures = {
            "loaded_tokens": 0,
            "stored_tokens": 0,
            "loaded_bytes": 0,
            "stored_bytes": 0,
            "ignored_files": 0,
            "seconds": 0.0,
        }
        self.can_write = True
        self._folder = folder
        self._index = index
        self._max_bytes = max_bytes
        self._warn = warn
        self._has_warned = False
        self._used: set[str] = set()  # files counted as used in this run

    def read(
        self, name: str, check: Callable[[StoredPrefix, Mapping[str, Tensor]], None]
    ) -> dict[str, Tensor] | None:
        """Return the tensors of a file; None, and the file dropped from the index, if it is of no
        use. `check` raises `DamagedEntryError` for what a run cannot use."""
        try:
            data = (self._folder.path / name).read_bytes()
            entry = StoredPrefix.verified(data, name)
            tensors = _tensors(data)
            check(entry, tensors)
        except (DamagedEntryError, OSError) as error:
            self._index.drop(name)
            if not isinstance(error, FileNotFoundError):  # another run has removed it
                self.ignore(f"{describe_error(name, error)}; its tokens are recomputed")
            return None
        self.figures["loaded_bytes"] += len(data)
        return tensors

    def write(self, entry: StoredPrefix, tensors: Mapping[str, Tensor]) -> str | None:
        """Write one entry; return its name, None if it was not written."""
        if not all(map(is_finite, tensors.values())):
            return None  # what led to NaN must not be found by anybody
        data = save(dict(tensors), metadata=entry.metadata())
        if len(data) > self._max_bytes:
            return None
        name = entry.file_name(data)
        try:
            self._folder.write(name, data)
            if self._folder.num_bytes() > self._max_bytes:
                self._folder.trim(self._max_bytes)
        except OSError as error:
            self.can_write = False
            self.tell(f"nothing more is stored in it ({error.strerror}); the run continues")
            return None
        self._index.add(name, entry)
        self.figures["stored_bytes"] += len(data)
        return name

    def note_use(self, names: Sequence[str]) -> None:
        """Count one use in this run of each of the entries of a prefix, in the order of its
        tokens."""
        self._folder.date(names)
        new = [name for name in names if name not in self._used]
        self._used.update(new)
        self._folder.note_use(new)

    def ignore(self, what: str, num_files: int = 1) -> None:
        """Count files that are of no use, and tell of them."""
        self.figures["ignored_files"] += num_files
        self.tell(what)

    def tell(self, what: str) -> None:
        """Warn of the first thing that is wrong; there may be thousands like it."""
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"{option('prefix_store')} {self._folder.path}: {what}")


def is_finite(tensor: Tensor) -> bool:
    """Return whether there is neither NaN nor infinity in keys, values, scales or states.

    The extremes tell, as NaN is one wherever it occurs; looking at each takes twenty times as long.
    """
    if tensor.dtype == torch.int8 or not tensor.numel():
        return True
    if tensor.dtype == torch.float8_e4m3fn:  # has no order on a CPU; all ones but the sign is NaN
        return bool((tensor.view(torch.uint8) & 0x7F != 0x7F).all())
    return bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())


def _tensors(data: bytes) -> dict[str, Tensor]:
    """Return the tensors of a file; its name is of its bytes, whatever they are."""
    try:
        return load(data)
    except Exception as error:  # safetensors and torch raise errors of many types
        raise DamagedEntryError("its tensors cannot be read") from error


def describe_error(name: str, error: Exception) -> str:
    """Return the message about a file that cannot be used."""
    if isinstance(error, OSError):
        return f"{name} cannot be read ({error.strerror})"
    return f"{name} is damaged and is ignored ({error})"


def _tokens(block: StoredBlock) -> tuple[int, ...]:
    return block.token_ids


def _num_common(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    if one == two:
        return len(one)
    pairs = enumerate(zip(one, two, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(two)))
