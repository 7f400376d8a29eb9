"""Files in object stores, by their addresses, read through fsspec where it is installed."""

from typing import Any, BinaryIO, cast

from pagedrun.paged.values.errors import UsageError

SCHEMES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}  # and the package each needs


def is_remote(name: str) -> bool:
    """Whether a name is the address of a file in an object store."""
    scheme, mark, _ = name.partition("://")
    return bool(mark) and scheme in SCHEMES


def open_remote(name: str) -> BinaryIO:
    """Open the file at an address, to be read at any place.

    Raises `UsageError` if it cannot be opened, or the package for it is not installed.
    """
    system, path = _system(name)
    try:
        return cast(BinaryIO, system.open(path, "rb"))
    except Exception as error:  # whatever the store and the network raise
        raise UsageError(f"{name}: cannot be opened ({_reason(error)})") from error


def matching(pattern: str) -> list[str]:
    """Return the addresses that a pattern matches, in order; raises as `open_remote` does."""
    system, path = _system(pattern)
    try:
        found = sorted(system.glob(path))
    except Exception as error:
        raise UsageError(f"{pattern}: cannot be listed ({_reason(error)})") from error
    return [str(system.unstrip_protocol(each)) for each in found]


def _system(name: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    package = SCHEMES[name.partition("://")[0]]
    try:
        import fsspec

        return cast(tuple[Any, str], fsspec.core.url_to_fs(name))
    except ImportError as error:
        raise UsageError(
            f"{name} needs the packages fsspec and {package}: pip install fsspec {package}"
        ) from error
    except Exception as error:
        raise UsageError(f"{name}: cannot be opened ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
