"""What the fields of SamplingParams take, where a type and two bounds do not say it."""

from pagedrun.paged.values.rules import is_int

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 1024


def is_share(value: object) -> bool:
    """Whether a value is a share above 0 and at most 1."""
    return isinstance(value, float) and 0.0 < value <= 1.0


def is_stop(value: object) -> bool:
    """Whether a value is a tuple of stop strings, not too many and not too long."""
    return (
        isinstance(value, tuple)
        and len(value) <= MAX_STOP_STRINGS
        and all(
            isinstance(text, str) and 0 < len(text) <= MAX_STOP_LENGTH and _is_unicode(text)
            for text in value
        )
    )


def _is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_id_list(value: object) -> bool:
    """Whether a value is a tuple of token ids, not too many."""
    return (
        isinstance(value, tuple)
        and len(value) <= MAX_STOP_TOKEN_IDS
        and all(is_int(item) and item >= 0 for item in value)
    )
