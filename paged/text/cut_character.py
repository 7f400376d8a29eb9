"""The bytes at the end of an answer that begin a character and do not end it."""

from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from typing import Any

_Utf8Decoder = getincrementaldecoder("utf-8")


def byte_values(backend: Any) -> dict[int, int]:
    """Return the bytes that single tokens are, by token id, where decoding joins them.

    That is so for SentencePiece models ("byte fallback"). There one byte too few spoils all bytes
    beside it: none of them is shown. Other tokenizers have none of these.
    """
    decoder = backend.decoder
    if decoder is None or b'"ByteFallback"' not in decoder.__getstate__():
        return {}
    ids = ((backend.token_to_id(f"<0x{value:02X}>"), value) for value in range(256))
    return {token_id: value for token_id, value in ids if token_id is not None}


def num_cut_bytes(token_ids: Sequence[int], values: Mapping[int, int]) -> int:
    """Return how many of the last tokens are bytes of a character that does not end."""
    for count in range(1, min(3, len(token_ids)) + 1):
        tail = [values.get(token_id) for token_id in token_ids[-count:]]
        if None in tail:
            return 0
        try:
            is_whole = _Utf8Decoder().decode(bytes(each for each in tail if each is not None))
        except UnicodeDecodeError:
            continue  # it begins before these
        return 0 if is_whole else count
    return 0
