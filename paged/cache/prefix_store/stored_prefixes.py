"""StoredPrefixes: the prefixes and states that one run loads from the store and writes to it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from pagedrun.kernels.array_types import Int32s, Int64s
from pagedrun.paged.cache.block_pool import StagedBlocks, StagedState
from pagedrun.paged.cache.kv_cache import KVCache, KVMemory, OpaqueStates, StateCache
from pagedrun.paged.cache.prefix_store.entry import (
    MIN_STORED_TOKENS,
    DamagedEntryError,
    StoredPrefix,
    StoreIdentity,
)
from pagedrun.paged.cache.prefix_store.folder import StoreFolder
from pagedrun.paged.cache.prefix_store.store_files import (
    Match,
    PrefixIndex,
    StoreFiles,
    describe_error,
)
from pagedrun.paged.values.planned_request import ROOT_DIGEST, BlockKey, PlannedRequest
from pagedrun.paged.values.request import Request

# A file is read and checked as a whole, in memory; and what is damaged in one spares the others.
MAX_ENTRY_BYTES = 2**26
ReadBlocks = Callable[[int, int], list[Tensor]]  # from one block to another, as `KVMemory.read`


class StoredPrefixes:
    """Looks prompts up in the store, and keeps there what the plan says rows share.

    `max_bytes` is what the store may come to hold, `max_entry_bytes` what a piece of a prefix has,
    a file each. Nothing that goes wrong with the store stops a run: `warn` says so once,
    and the prefixes are computed.
    """

    def __init__(
        self,
        folder: StoreFolder,
        identity: StoreIdentity,
        cache: KVCache,
        max_bytes: int,
        warn: Callable[[str], None],
        max_entry_bytes: int = MAX_ENTRY_BYTES,
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._cache = cache
        self._max_entry_bytes = max_entry_bytes
        self._index = PrefixIndex(cache.block_size)
        self._files = StoreFiles(folder, self._index, max_bytes, warn)
        assert not isinstance(cache.states, OpaqueStates), "what a library keeps is not stored"
        self._state_cache = cache.states
        self._states = (
            None
            if cache.states is None
            else StoredStates(self._files, self._index, identity, cache.states, cache.block_size)
        )
        self.figures = self._files.figures
        self.achievable_tokens = 0
        self._rows: dict[int, PlannedRequest] = {}
        self._copies = {
            group: WindowCopies(memory)
            for group, memory in enumerate(cache.groups)
            if memory.spec.window is not None
        }
        self._read_index()

    def watched(self, requests: Iterable[PlannedRequest]) -> Iterator[PlannedRequest]:
        """Yield the requests, and record them for storing."""
        for planned in requests:
            self._rows[planned.request.index] = planned
            yield planned

    def find(
        self,
        request: Request,
        block_keys: Sequence[BlockKey],
        num_hits: int,
        num_given: int,
        fits: Callable[[int], bool],
    ) -> StagedBlocks | None:
        """Return what the store has of a prompt behind its first `num_hits` blocks, checked."""
        began = time.perf_counter()
        prompt = request.prompt_token_ids
        begin = num_hits * self._cache.block_size
        parent = block_keys[num_hits - 1].digest if num_hits else ROOT_DIGEST
        staged: StagedBlocks | None = None
        while staged is None:
            matches = self._index.matches(prompt, begin, parent)
            num_tokens = sum(match.num_tokens for match in matches)
            if num_tokens - num_given < MIN_STORED_TOKENS or not fits(begin + num_tokens):
                break
            files = self._read(matches)  # None if one is of no use
            if files is not None:
                self._files.note_use(list(files))
                staged = self._stage(files, matches, begin + num_tokens)
                self._note_found(request, begin + num_tokens, num_tokens)
        self.figures["seconds"] += time.perf_counter() - began
        return staged

    def find_state(
        self,
        request: Request,
        block_keys: Sequence[BlockKey],
        num_hits: int,
        num_found: int,
        fits: Callable[[int], bool],
    ) -> StagedState | None:
        """Return the longest state that the store has of a prompt, checked, and the blocks up to
        there behind the first `num_hits`."""
        began, size = time.perf_counter(), self._cache.block_size
        assert self._states is not None and self._state_cache is not None, "made without states"
        hits = [key.digest for key in block_keys[:num_hits]]
        parent = hits[-1] if hits else ROOT_DIGEST
        staged: StagedState | None = None
        while staged is None:
            behind = self._index.matches(request.prompt_token_ids, num_hits * size, parent)
            whole = (match.block for match in behind if match.num_tokens == size)
            digests = hits + [block.digest for block in whole if block.digest is not None]
            while digests and not fits(len(digests) * size):
                digests.pop()
            count = self._states.longest(digests)
            if count * size - num_found < MIN_STORED_TOKENS:
                break
            matches = behind[: max(count - num_hits, 0)]
            state, files = self._states.read(digests[count - 1]), self._read(matches)
            if state is not None and files is not None:
                name, tensors = state
                self._files.note_use([*files, name])
                source = self._state_cache.stage(tensors, 0)
                staged = StagedState(
                    source, count * size, self._stage(files, matches, count * size)
                )
                self._note_found(request, count * size, count * size - num_found)
        self.figures["seconds"] += time.perf_counter() - began
        return staged

    def note_step(
        self,
        rows: Int64s,
        starts: Int64s,
        ends: Int64s,
        tables: Sequence[Int32s],
        write_slots: Int64s,
    ) -> None:
        """Store the blocks and states of a step that later runs can use.

        Called before the next step is scheduled: the blocks still hold those of this one. rows,
        starts, ends, write_slots: [num_chunks], each chunk's request, first token, end, and the
        slot of its state. tables: blocks in each group of layers, [num_chunks, width].
        """
        chunks = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
        for chunk, (index, start, end) in enumerate(chunks):
            row = self._rows.get(index)
            if row is None:
                continue
            began, num_tokens = time.perf_counter(), self._num_stored_tokens(row)
            if self._states is not None and self._files.can_write:
                self._states.note(row, end, int(write_slots[chunk]))
            if num_tokens and self._files.can_write:
                for group, copies in self._copies.items():
                    copies.note(index, start, end, num_tokens, tables[group][chunk].tolist())
            if end >= num_tokens:
                del self._rows[index]
                if num_tokens and self._files.can_write:
                    self._store(row, [each[chunk].tolist() for each in tables])
                for copies in self._copies.values():
                    copies.forget(index)
            self.figures["seconds"] += time.perf_counter() - began

    # ── Taking from the store ───────────────────────────────────────────────────────────────────

    def _read_index(self) -> None:
        """Read the headers of this model's entries; tell in one line what cannot be used."""
        bad: list[str] = []
        others: StoreIdentity | None = None
        try:
            for path in self._folder.entries():
                is_ours = path.name.startswith(self._identity.fingerprint)
                if not is_ours and others is not None:
                    continue
                try:
                    entry = StoredPrefix.read(path)
                except FileNotFoundError:
                    continue  # another run trims
                except (DamagedEntryError, OSError) as error:
                    bad += [describe_error(path.name, error)] if is_ours else []
                    continue
                if entry.identity.fingerprint == self._identity.fingerprint:
                    self._index.add(path.name, entry)
                elif is_ours:
                    bad.append(f"{path.name} has a name that belongs to another model or setting")
                else:
                    others = entry.identity
        except OSError as error:
            bad.append(f"the folder cannot be read ({error.strerror})")
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            self._files.ignore(f"{bad[0]}{more}; their tokens are recomputed", len(bad))
        elif others is not None and not len(self._index):
            what = ", another ".join(others.differing(self._identity))
            self._files.tell(f"its contents belong to another {what}, so this run cannot use them")

    def _read(self, matches: Sequence[Match]) -> dict[str, list[list[Tensor]]] | None:
        """Return the tensors of each group in the files of the matches, in the order of their
        tokens. None, and a file dropped, if one is of no use."""
        names = list(dict.fromkeys(match.block.file_name for match in matches))
        files: dict[str, list[list[Tensor]]] = {}
        for name in names:
            check = partial(self._check, [m for m in matches if m.block.file_name == name])
            tensors = self._files.read(name, check)
            if tensors is None:
                return None
            files[name] = self._by_group(tensors)
        return files

    def _stage(
        self, files: Mapping[str, list[list[Tensor]]], matches: Sequence[Match], end: int
    ) -> StagedBlocks:
        """Return what moves the blocks of the matches, which go up to token `end`."""
        size, staged = self._cache.block_size, []
        for group, memory in enumerate(self._cache.groups):
            window = memory.spec.window
            # The prompt's last token is computed again, if all of it is there.
            first = 0 if window is None else max(end - window, 0) // size
            needed = matches[-max(-(-end // size) - first, 1) :]
            staged.append(
                [
                    memory.stage(files[match.block.file_name][group], match.block.position)
                    for match in needed
                ]
            )
        return StagedBlocks(staged, sum(match.num_tokens for match in matches))

    def _by_group(self, tensors: Mapping[str, Tensor]) -> list[list[Tensor]]:
        """Return the tensors of each group of layers."""
        groups = range(len(self._cache.groups))
        return [[tensors[name] for name in _names(group) if name in tensors] for group in groups]

    def _check(
        self, matches: Sequence[Match], entry: StoredPrefix, tensors: Mapping[str, Tensor]
    ) -> None:
        """Raise `DamagedEntryError` unless a file has the matched tokens and the cache's shapes.

        The file may have changed since the index was built.
        """
        size = self._cache.block_size
        num_blocks = -(-len(entry.token_ids) // size)
        for memory, found in zip(self._cache.groups, self._by_group(tensors), strict=True):
            shapes = [(tuple(each.shape), each.dtype) for each in found]
            if shapes != memory.shapes(num_blocks):
                raise DamagedEntryError("its tensors do not have the model's shape")
        for match in matches:
            start = match.block.position * size
            if entry.token_ids[start : start + size] != match.block.token_ids:
                raise DamagedEntryError("its tokens have changed")
        if matches[0].block.position == 0 and entry.parent != matches[0].block.parent:
            raise DamagedEntryError("its tokens have changed")

    def _note_found(self, request: Request, end: int, num_tokens: int) -> None:
        self.figures["loaded_tokens"] += num_tokens
        row = self._rows.get(request.index)
        num_common = row.num_common_tokens if row else 0
        most = len(request.prompt_token_ids) - 1  # the last one is always computed
        self.achievable_tokens += max(min(end, most) - min(num_common, most), 0)

    # ── Leaving in the store ────────────────────────────────────────────────────────────────────

    def _num_stored_tokens(self, row: PlannedRequest) -> int:
        """Return how many leading tokens of a row are of use in the store."""
        if self._states is None:
            return row.num_stored_tokens
        return self._states.num_stored_tokens(row)

    def _store(self, row: PlannedRequest, tables: Sequence[Sequence[int]]) -> None:
        """Store what a row is to store of its prompt, unless it is there but for a few tokens.

        tables: the row's in each group of layers.
        """
        size, num_tokens = self._cache.block_size, self._num_stored_tokens(row)
        prompt = row.request.prompt_token_ids[:num_tokens]
        known = self._index.matches(prompt, 0, ROOT_DIGEST)
        num_known = sum(match.num_tokens for match in known)
        if num_tokens - num_known < MIN_STORED_TOKENS:
            return
        names = list(dict.fromkeys(match.block.file_name for match in known))
        first = num_known // size
        blocks = self._blocks(row, first, tables)
        if blocks is None:
            return
        per_entry = max(self._max_entry_bytes // self._cache.bytes_per_block, 1) * size
        for start in range(num_known // size * size, num_tokens, per_entry):
            keys = row.block_keys
            parent = keys[start // size - 1].digest if start else ROOT_DIGEST
            tokens = prompt[start : start + per_entry]
            name = self._write(
                StoredPrefix(self._identity, parent, start, tokens), blocks, start // size - first
            )
            if name is None:
                return
            names.append(name)
        self._folder.date(names)

    def _blocks(
        self, row: PlannedRequest, first: int, tables: Sequence[Sequence[int]]
    ) -> list[ReadBlocks] | None:
        """Return what reads the blocks of each group from block `first` of a row on; None if a
        window has left some behind that this row has not computed itself."""
        blocks: list[ReadBlocks] = []
        for group, (memory, table) in enumerate(zip(self._cache.groups, tables, strict=True)):
            if group not in self._copies:
                blocks.append(partial(_read_held, memory, table[first:]))
                continue
            copied = self._copies[group].of(row.request.index, first)
            if copied is None:
                return None
            blocks.append(partial(_read_copied, copied))
        return blocks

    def _write(self, entry: StoredPrefix, blocks: Sequence[ReadBlocks], first: int) -> str | None:
        """Write one entry, of the blocks from `first` on; return its name, None if it was not
        written."""
        num_blocks = -(-len(entry.token_ids) // self._cache.block_size)
        filled = len(entry.token_ids) - (num_blocks - 1) * self._cache.block_size
        tensors: dict[str, Tensor] = {}
        for group, each in enumerate(blocks):
            for name, tensor in zip(_names(group), each(first, first + num_blocks), strict=False):
                tensor[:, :, -1, :, filled:] = 0  # of the row itself: it is not stored
                tensors[name] = tensor
        written = self._files.write(entry, tensors)
        if written is not None:
            self.figures["stored_tokens"] += len(entry.token_ids)
        return written


def _read_held(memory: KVMemory, table: Sequence[int], first: int, end: int) -> list[Tensor]:
    return memory.read(table[first:end])


def _read_copied(copied: Sequence[Tensor], first: int, end: int) -> list[Tensor]:
    return [tensor[:, :, first:end].contiguous() for tensor in copied]


def _names(group: int) -> tuple[str, str]:
    """Return what the tensors of a group of layers are called in a file."""
    return ("kv", "scales") if not group else (f"kv.{group}", f"scales.{group}")


Array = TypeVar("Array")


class StoredStates:
    """The states behind blocks at which rows begin, a file each."""

    def __init__(
        self,
        files: StoreFiles,
        index: PrefixIndex,
        identity: StoreIdentity,
        states: StateCache,
        block_size: int,
    ) -> None:
        self._files = files
        self._index = index
        self._identity = identity
        self._states = states
        self._block_size = block_size

    def num_stored_tokens(self, row: PlannedRequest) -> int:
        """Return how many of the tokens to be stored of a row lie before its last state."""
        return max(self._points(row), default=0)

    def note(self, row: PlannedRequest, end: int, slot: int) -> None:
        """Store the state behind a chunk of a row that ends at token `end`, if rows begin there.

        slot: where it lies now.
        """
        if end not in self._points(row):
            return
        key = row.block_keys[end // self._block_size - 1]
        if self._index.state_behind(key.digest) is None:
            start = end - self._block_size
            entry = StoredPrefix(self._identity, key.parent, start, key.token_ids, has_state=True)
            self._files.write(entry, _named(self._states.read([slot])))

    def longest(self, digests: Sequence[bytes]) -> int:
        """Return behind how many blocks, named by their digests, there is a state; 0 for none."""
        counts = range(len(digests), 0, -1)
        return next((count for count in counts if self._index.state_behind(digests[count - 1])), 0)

    def read(self, digest: bytes) -> tuple[str, list[Tensor]] | None:
        """Return the file with the state behind a block, and its tensors; None, and the file
        dropped, if it is of no use."""

        def check(entry: StoredPrefix, tensors: Mapping[str, Tensor]) -> None:
            if BlockKey.after(entry.parent, entry.token_ids).digest != digest:
                raise DamagedEntryError("its tokens have changed")
            shapes = {name: (tuple(each.shape), each.dtype) for name, each in tensors.items()}
            if shapes != _named(self._states.shapes(1)):
                raise DamagedEntryError("its tensors do not have the model's shape")

        name = self._index.state_behind(digest)
        tensors = None if name is None else self._files.read(name, check)
        if name is None or tensors is None:
            return None
        return name, [tensors[each] for each in _named(tensors)]

    def _points(self, row: PlannedRequest) -> list[int]:
        """Return the tokens behind which later rows begin, of those to be stored of a row."""
        points, point = [], row.state_points
        while point is not None:
            points.append(point.num_blocks * self._block_size)
            point = point.next
        return [end for end in points if 0 < end <= row.num_stored_tokens]


def _named(arrays: Iterable[Array]) -> dict[str, Array]:
    """Return arrays, or their shapes, by what they are called in a file."""
    return {f"state.{number}": each for number, each in enumerate(arrays)}


class _Copied(NamedTuple):
    """Blocks `[first, end)` of a row, on the host, part by part."""

    first: int
    end: int
    parts: list[list[Tensor]]


class WindowCopies:
    """Copies of a group's blocks, row by row, as they are filled."""

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        self._rows: dict[int, _Copied] = {}

    def note(self, row: int, start: int, end: int, num_tokens: int, table: Sequence[int]) -> None:
        """Copy what a step fills of a row with its chunk `[start, end)`, up to `num_tokens`.

        table: the row's, while it holds the blocks.
        """
        size = self._memory.block_size
        known = self._rows.get(row)
        if known is None or start // size > known.end:
            known = _Copied(start // size, start // size, [])
        filled = -(-num_tokens // size) if end >= num_tokens else end // size
        if filled > known.end:
            known.parts.append(self._memory.read(table[known.end : filled]))
            self._rows[row] = known._replace(end=filled)

    def forget(self, row: int) -> None:
        """Drop the copies of a row."""
        self._rows.pop(row, None)

    def of(self, row: int, first: int) -> list[Tensor] | None:
        """Return the copies of a row from block `first` on, as `KVMemory.read` does; None if they
        begin later."""
        copied = self._rows.get(row)
        if copied is None or copied.first > first:
            return None
        wholes = [torch.cat(parts, dim=2) for parts in zip(*copied.parts, strict=True)]
        return [whole[:, :, first - copied.first :] for whole in wholes]
