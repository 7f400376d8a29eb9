"""JsonObject: checked fields of a JSON file of a model folder.

Model folders are untrusted: only fields requested by name are read, each with a type and a range,
and nothing is imported or run.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISREG
from typing import TypeGuard

from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue

MAX_BYTES = 64 * 2**20  # the index of a checkpoint with 10^5 tensors is about 10 MB
LFS_MAGIC = b"version https://git-lfs"
MAX_SHOWN = 80


def require_folder(folder: str | Path) -> Path:
    """Return `folder` as a `Path`; raises `ModelError` if it is not an existing folder."""
    path = Path(folder)
    if not path.exists():
        raise ModelError(
            f"{_shown(str(folder))}: no such folder; pass the path of a Hugging Face model folder"
        )
    if not path.is_dir():
        raise ModelError(
            f"{_shown(str(folder))} is a file; pass the folder that holds config.json, "
            "tokenizer.json and *.safetensors"
        )
    return path


def read_small(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the contents of a small file of a model folder; raises as `require_small` does."""
    require_small(path, max_bytes)
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def require_small(path: Path, max_bytes: int = MAX_BYTES) -> None:
    """Raise `ModelError` for anything but a readable file of at most `max_bytes`.

    A named pipe or a device in its place may never end. A git-lfs pointer is refused, too.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    if not S_ISREG(status.st_mode):
        raise ModelError(f"{path} is not a file; put the model's own {path.name} there")
    if status.st_size > max_bytes:
        raise ModelError(
            f"{path} is larger than {max_bytes >> 20} MiB, more than such a file can have; "
            "download it again"
        )
    refuse_lfs_pointer(path)


def _unreadable(path: Path, error: OSError) -> ModelError:
    return ModelError(f"{path}: cannot be read ({error.strerror}); check its permissions")


def refuse_lfs_pointer(path: Path) -> None:
    """Raise `ModelError` if `path` is a git-lfs pointer in place of the file."""
    try:
        with path.open("rb") as file:
            start = file.read(len(LFS_MAGIC))
    except OSError as error:
        raise _unreadable(path, error) from error
    if start == LFS_MAGIC:
        raise ModelError(
            f"{path} is a git-lfs pointer, not the file itself; run `git lfs pull` in the model "
            "folder or download the model again"
        )


class JsonObject:
    """Object in a JSON file, or nested in it.

    Getters return the value of a field if its type and range are valid, the default if it is
    absent, and otherwise raise `ModelError` naming file, field, value and requirement. `null`
    counts as absent. `origin` is the file and the path to this object, `fields` the unchecked
    values.
    """

    def __init__(self, origin: str, fields: Mapping[str, JSONValue]) -> None:
        self.origin = origin
        self.fields = fields

    @classmethod
    def read(cls, path: Path, max_bytes: int = MAX_BYTES) -> "JsonObject":
        """Read the file at `path`; raises `ModelError` if it is missing, too large or no object."""
        return cls.parse(str(path), _contents(path, max_bytes))

    @classmethod
    def read_list(cls, path: Path, max_bytes: int) -> list["JsonObject"]:
        """Read a file that contains a list of objects; raises as `read`."""
        values = _parsed(str(path), _contents(path, max_bytes))
        if not isinstance(values, list):
            raise ModelError(f"{path} does not contain a JSON list; download the model again")
        found = []
        for number, each in enumerate(values):
            if not isinstance(each, dict):
                raise ModelError(
                    f"{path}: item {number} is not an object; download the model again"
                )
            found.append(cls(f"{path}: item {number}", each))
        return found

    @classmethod
    def parse(cls, origin: str, data: bytes) -> "JsonObject":
        """Parse the contents of `origin`; raises `ModelError` if they are no object."""
        values = _parsed(origin, data)
        if not isinstance(values, dict):
            raise ModelError(f"{origin} does not contain a JSON object; download the model again")
        return cls(origin, values)

    def with_defaults(self, defaults: Mapping[str, JSONValue]) -> "JsonObject":
        """Return the object with `defaults` for its missing fields."""
        return JsonObject(self.origin, {**defaults, **self.fields})

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def has(self, name: str) -> bool:
        """Return true if the field is present and not `null`."""
        return self.fields.get(name) is not None

    def get(self, name: str) -> JSONValue:
        """Return the unchecked value, None if absent."""
        return self.fields.get(name)

    def error(self, name: str, wanted: str) -> ModelError:
        """Return the error for a field; `wanted` completes "it must be"."""
        shown = _shown(name)
        if not self.has(name):
            return ModelError(f"{self.origin}: {shown} is missing; it must be {wanted}")
        value = _shown(repr(self.fields[name]))
        return ModelError(f"{self.origin}: {shown} is {value}; it must be {wanted}")

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer from `low` to `high`; without a default the field is required."""
        if not self.has(name) and default is not None:
            return default
        value = self.fields.get(name)
        if not is_integer(value) or not low <= value <= high:
            raise self.error(name, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """Return a finite number from `low` to `high`; without a default the field is required."""
        if not self.has(name) and default is not None:
            return default
        value = self.fields.get(name)
        wanted = f"a number from {low:g} to {high:g}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, wanted)
        if not low <= value <= high:  # nor does NaN compare
            raise self.error(name, wanted)
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.fields.get(name) if self.has(name) else default
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def string(self, name: str) -> str | None:
        """Return a string, None if absent."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def text(self, name: str) -> str:
        """Return a required string."""
        value = self.string(name)
        if value is None:
            raise self.error(name, "a string")
        return value

    def nested(self, name: str) -> "JsonObject | None":
        """Return the object under `name`, None if absent or empty."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(name, "an object")
        return JsonObject(f"{self.origin}: {name}", value) if value else None

    def section(self, name: str) -> "JsonObject":
        """Return the required, possibly empty object under `name`."""
        value = self.fields.get(name)
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return JsonObject(f"{self.origin}: {name}", value)


def is_integer(value: object) -> TypeGuard[int]:
    """Return true for a JSON integer; `true` is an int in Python, too."""
    return isinstance(value, int) and not isinstance(value, bool)


def _contents(path: Path, max_bytes: int) -> bytes:
    """Return the contents of a file; `ModelError` if it is missing or too large."""
    if not path.exists():
        raise ModelError(
            f"{path.parent}: {path.name} is missing; pass a Hugging Face model folder, or "
            "download the model again"
        )
    return read_small(path, max_bytes)


def _parsed(origin: str, data: bytes) -> JSONValue:
    try:
        values: JSONValue = json.loads(data.decode("utf-8-sig"))
    except RecursionError as error:
        raise ModelError(f"{origin}: too deeply nested; download the model again") from error
    except ValueError as error:  # bad UTF-8, bad JSON, endless digits
        raise _not_json(origin, error) from error
    return values


def _not_json(origin: str, error: Exception) -> ModelError:
    return ModelError(
        f"{origin} is not valid JSON ({_shown(str(error))}); download the model again"
    )


def _shown(text: str) -> str:
    """Return `text` as one printable, short line."""
    clean = "".join(char if char.isprintable() else "�" for char in text)
    return clean if len(clean) <= MAX_SHOWN else clean[: MAX_SHOWN - 1] + "…"
