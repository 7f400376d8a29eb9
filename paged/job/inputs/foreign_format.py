"""Refuses files that are not the text they were taken for, and says what they are."""

from pagedrun.paged.values.errors import UsageError

FIRST_BYTES = 8
_UTF16 = "UTF-16 text; convert it to UTF-8 first (iconv -f UTF-16LE or UTF-16BE, -t UTF-8)"
_UTF32 = "UTF-32 text; convert it to UTF-8 first (iconv -f UTF-32 -t UTF-8)"
_FOREIGN = {  # first bytes of files that are often given by mistake
    b"\x1f\x8b": "compressed with gzip; let its name end in .gz, or unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstandard; let its name end in .zst, or unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"PAR1": "a Parquet file; let its name end in .parquet",
    b"\xff\xfe\x00\x00": _UTF32,
    b"\x00\x00\xfe\xff": _UTF32,
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "UTF-16 text; convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)",
}


def refuse_foreign(name: str, first_bytes: bytes) -> None:
    """Raise `UsageError` if the text input `name` begins as something else does."""
    for magic, what in _FOREIGN.items():
        if first_bytes.startswith(magic):
            raise UsageError(f"{name} is {what}")
    start = first_bytes[:FIRST_BYTES]
    for every_second, others in ((start[1::2], start[::2]), (start[::2], start[1::2])):
        # No mark at the start: ASCII in UTF-16 is every second byte zero, and a line's end as
        # well. One zero among letters may be text.
        has_seen_enough = len(every_second) > 1 or start == b"\0"
        if has_seen_enough and not any(every_second) and all(others):
            raise UsageError(f"{name} is {_UTF16}")
