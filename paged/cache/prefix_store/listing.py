"""StoreListing: contents of a prefix store, and removal of useless entries."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pagedrun.paged.cache.prefix_store.entry import DamagedEntryError, StoredPrefix
from pagedrun.paged.cache.prefix_store.folder import EntryUse, StoreFolder
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.planned_request import ROOT_DIGEST, BlockKey


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """File of the store with its size and use, its header, or its problem."""

    use: EntryUse
    entry: StoredPrefix | None
    problem: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as JSON; header fields of a damaged file are None."""
        entry = self.entry
        fields = {} if entry is None else entry.identity.fields
        last_use = datetime.fromtimestamp(self.use.last_use_ns / 1e9, UTC)
        return {
            "file": self.use.path.name,
            "model": None if entry is None else entry.identity.model,
            "dtype": fields.get("dtype"),
            "kv_dtype": fields.get("kv_dtype"),
            "block_size": fields.get("block_size"),
            "start": None if entry is None else entry.start,
            "tokens": None if entry is None else _num_tokens(entry),
            "has_state": None if entry is None else entry.has_state,
            "bytes": self.use.num_bytes,
            "last_use": last_use.isoformat(timespec="seconds"),
            "uses": self.use.num_uses,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class StoreListing:
    """Entries of a store, the most recently used first, and the removed ones."""

    path: Path
    entries: Sequence[ListedEntry]
    removed: Sequence[ListedEntry] = ()

    @classmethod
    def read(cls, path: Path) -> "StoreListing":
        """List a store; headers and sizes are checked, so truncated files are found.

        Raises `UsageError` if `path` is no store or cannot be read.
        """
        return cls(path, _listed(_opened(path), whole=False))

    @classmethod
    def pruned(cls, path: Path, max_bytes: int | None) -> "StoreListing":
        """Remove useless entries, and the least recently used ones beyond `max_bytes`.

        Useless are damaged files, for which every byte is read, and prefixes without their
        beginning. Raises `UsageError` if `path` is no store or cannot be changed.
        """
        folder = _opened(path)
        before = _listed(folder, whole=True)
        try:
            folder.remove([each.use.path for each in before if each.problem is not None])
            trimmed = [] if max_bytes is None else folder.trim(max_bytes)
        except OSError as error:
            raise UsageError(
                f"{error.filename or path} cannot be removed ({error.strerror})"
            ) from error
        gone = {use.path for use in trimmed}
        removed = [each for each in before if each.problem is not None or each.use.path in gone]
        return cls(path, _listed(folder, whole=False), removed)

    def to_dict(self) -> dict[str, Any]:
        """Return the listing as JSON holds it; sizes in bytes."""
        return {
            "store": str(self.path),
            "bytes": sum(each.use.num_bytes for each in self.entries),
            "tokens": sum(_num_tokens(each.entry) for each in self.entries if each.entry),
            "damaged": sum(each.problem is not None for each in self.entries),
            "entries": [each.to_dict() for each in self.entries],
            "removed": [each.to_dict() for each in self.removed],
        }


def _num_tokens(entry: StoredPrefix) -> int:
    """Return how many tokens an entry has keys and values of."""
    return 0 if entry.has_state else len(entry.token_ids)


def _opened(path: Path) -> StoreFolder:
    return StoreFolder.open(path, create=False, flag="")


def _listed(folder: StoreFolder, *, whole: bool) -> list[ListedEntry]:
    """Return the entries, the most recently used first; every byte is read if `whole`."""
    try:
        listed = [_looked_at(use, whole=whole) for use in reversed(folder.uses())]
    except OSError as error:
        raise UsageError(f"{folder.path} cannot be read ({error.strerror})") from error
    whole_to_end = {ROOT_DIGEST}
    for entry in sorted((e.entry for e in listed if e.entry is not None), key=lambda e: e.start):
        if entry.parent in whole_to_end and not entry.has_state:
            whole_to_end.update(_digests(entry))
    return [
        ListedEntry(each.use, each.entry, "the beginning of its prefix is missing")
        if each.entry is not None and not _follows(each.entry, whole_to_end)
        else each
        for each in listed
    ]


def _looked_at(use: EntryUse, *, whole: bool) -> ListedEntry:
    try:
        if whole:
            entry = StoredPrefix.verified(use.path.read_bytes(), use.path.name)
        else:
            entry = StoredPrefix.read(use.path)
    except DamagedEntryError as error:
        return ListedEntry(use, None, f"damaged: {error}")
    except OSError as error:
        return ListedEntry(use, None, f"cannot be read ({error.strerror})")
    if not use.path.name.startswith(entry.identity.fingerprint):
        return ListedEntry(use, entry, "its name belongs to another model or setting")
    return ListedEntry(use, entry, None)


def _follows(entry: StoredPrefix, whole_to_end: set[bytes]) -> bool:
    """Return whether all is there that an entry is of use behind; of a state its own block too."""
    if entry.has_state:
        return not whole_to_end.isdisjoint(_digests(entry))
    return entry.parent in whole_to_end


def _digests(entry: StoredPrefix) -> list[bytes]:
    """Return the digests of the whole blocks of an entry."""
    size = entry.identity.fields.get("block_size")
    if not isinstance(size, int) or size < 1:
        return []
    digests: list[bytes] = []
    for start in range(0, len(entry.token_ids) - size + 1, size):
        parent = digests[-1] if digests else entry.parent
        digests.append(BlockKey.after(parent, entry.token_ids[start : start + size]).digest)
    return digests
