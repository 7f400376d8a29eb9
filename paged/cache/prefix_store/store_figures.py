"""StoreFigures: what the report says of the prefix store."""

from typing import TypedDict


class StoreFigures(TypedDict):
    """The report's `prefix_store` object: tokens, bytes, files and seconds of a run."""

    loaded_tokens: int
    stored_tokens: int
    loaded_bytes: int
    stored_bytes: int
    ignored_files: int
    seconds: float
