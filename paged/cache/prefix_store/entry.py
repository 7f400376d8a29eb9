"""StoredPrefix: one file of the store, a piece of a prefix or a state, and its identity.

A safetensors file with the tensors `kv` [num_layers, 2, num_blocks, num_kv_heads, block_size,
head_dim] and, for a quantized cache, `scales` [..., 1]; or `state.0` and so on, an array of all
recurrent layers each. Under `__metadata__` is a header in JSON behind its SHA-256. The file is
named after the SHA-256 of all its bytes, so that any damage is noticed, and two runs that write
the same write the same file.
"""

import hashlib
import json
import os
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pagedrun.paged.values.errors import option

# Names of identity fields in messages.
_NAMES = {
    "weights": "weights",
    "config": "config.json",
    "dtype": option("dtype"),
    "kv_dtype": option("kv_cache_dtype"),
    "block_size": option("block_size"),
    "reproducible": option("reproducible"),
}


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Identity of runs that may share keys and values: those with equal `fingerprint`.

    `model` is a name for people. `fields` hold what decides the bytes: the weights and the shape
    of the model, the number formats, the block size; and, since the last bits of a sum belong to
    whoever summed it, the machine and the code: processor or GPU, threads, libraries, kernels.
    """

    model: str
    fields: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that name all fields."""
        text = json.dumps(self.fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differing(self, other: "StoreIdentity") -> list[str]:
        """Return what differs, in a user's words; options are marked as messages mark them."""
        names = [
            _NAMES.get(name, "machine or version")
            for name in sorted({*self.fields, *other.fields})
            if self.fields.get(name) != other.fields.get(name)
        ]
        return list(dict.fromkeys(names))


# Below this a prefix is computed again sooner than a file is found, read and checked.
MIN_STORED_TOKENS = 64
FILE_NAME = re.compile(r"(?P<fingerprint>[0-9a-f]{16})-(?P<sha256>[0-9a-f]{64})\.safetensors")
_LENGTH_BYTES = 8  # of a safetensors header, little-endian, at the file's beginning
_MAX_HEADER_BYTES = 100_000_000  # as the format has it
# Of JSON with other values than a header has.
_NO_HEADER = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError),
    RecursionError,  # it is nested too deep
)
_HEADER = "pagedrun_prefix"  # one key alone: safetensors writes several in any order


class DamagedEntryError(Exception):
    """A damaged file of the store; the message names the damage."""


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """Header of a file: its tokens and the identity of its runs.

    The piece begins at token `start` of its prompts, at a block's border; `parent` is the digest
    of the block before it, which names all tokens before. Where the prefix ends inside a
    block, so does the last block of the file: what follows in it is zero. With `has_state` the
    file holds the state of recurrent layers behind its tokens, which are one block, and not their
    keys and values.
    """

    identity: StoreIdentity
    parent: bytes
    start: int
    token_ids: tuple[int, ...]
    has_state: bool = False

    def metadata(self) -> dict[str, str]:
        """Return the `__metadata__` of the file."""
        header = {
            "model": self.identity.model,
            "identity": self.identity.fields,
            "parent": self.parent.hex(),
            "start": self.start,
            "token_ids": self.token_ids,
        }
        if self.has_state:
            header["has_state"] = True
        text = json.dumps(header, sort_keys=True, separators=(",", ":"))
        return {_HEADER: f"{_sha256(text)} {text}"}

    @classmethod
    def read(cls, path: Path) -> "StoredPrefix":
        """Read the header of a file, not its tensors.

        Raises `DamagedEntryError` if it is not whole, `OSError` if it cannot be read.
        """
        with path.open("rb") as file:
            num_bytes = file.seek(0, 2)
            file.seek(0)
            return cls._from_start(_read_start(file, num_bytes), num_bytes)

    @classmethod
    def verified(cls, data: bytes, name: str) -> "StoredPrefix":
        """Return the header of a file whose bytes are `data`.

        Raises `DamagedEntryError` unless they are the bytes that the name was made of.
        """
        match = FILE_NAME.fullmatch(name)
        if match is None or hashlib.sha256(data).hexdigest() != match["sha256"]:
            raise DamagedEntryError("its bytes differ from those that were stored")
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        return cls._from_start(data[_LENGTH_BYTES:end], len(data))

    def file_name(self, data: bytes) -> str:
        """Return the name of the file that holds `data`."""
        return f"{self.identity.fingerprint}-{hashlib.sha256(data).hexdigest()}.safetensors"

    @classmethod
    def _from_start(cls, start: bytes, num_bytes: int) -> "StoredPrefix":
        try:
            tensors = json.loads(start)
            sha256, _, text = tensors.pop("__metadata__")[_HEADER].partition(" ")
            if sha256 != _sha256(text):
                raise DamagedEntryError("its header differs from the one that was stored")
            end = max(each["data_offsets"][1] for each in tensors.values())
            if num_bytes != _LENGTH_BYTES + len(start) + end:
                raise DamagedEntryError("it is truncated, or longer than when it was stored")
            return cls._from_header(json.loads(text))
        except _NO_HEADER as error:
            raise DamagedEntryError("its header cannot be read") from error

    @classmethod
    def _from_header(cls, header: dict[str, Any]) -> "StoredPrefix":
        token_ids = array("i", header["token_ids"])  # the width that digests are made of
        start = header["start"]
        if not token_ids or not isinstance(start, int) or start < 0:
            raise DamagedEntryError("its header cannot be read")
        identity = StoreIdentity(str(header["model"]), dict(header["identity"]))
        parent, has_state = bytes.fromhex(header["parent"]), header.get("has_state", False) is True
        return cls(identity, parent, start, tuple(token_ids), has_state)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def find_entries(folder: Path) -> Sequence[Path]:
    """Return the entries of a store, sorted by name; links and other kinds of files are none.

    Raises `OSError` if the folder cannot be read.
    """
    with os.scandir(folder) as found:
        return sorted(
            Path(each.path)
            for each in found
            if FILE_NAME.fullmatch(each.name) and each.is_file(follow_symlinks=False)
        )


def _read_start(file: BinaryIO, num_bytes: int) -> bytes:
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > min(num_bytes, _MAX_HEADER_BYTES):
        raise DamagedEntryError("it is truncated, or longer than when it was stored")
    return file.read(length)
