"""InputDigest: what was read, so that two runs can tell whether they read the same."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputDigest:
    """The bytes that were read. `whole` is false if `limit` ended the reading of a stream.

    Of a file, `num_bytes` and `sha256` are those of its bytes as they lie on the disk. A dataset
    has no bytes of its own: there they are those of its rows as JSON, and `fingerprint` is the
    one that the `datasets` library keeps, if it does.
    """

    num_bytes: int
    sha256: str
    whole: bool
    fingerprint: str | None = None
