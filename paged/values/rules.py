"""Rules for the values of fields, and the wording of refusals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Rule:
    """Check of a value; `wanted` completes "must be", `words` are all values of a short list."""

    accepts: Callable[[object], bool]
    wanted: str
    words: tuple[str, ...] = ()

    @property
    def way_out(self) -> str:
        """Hint about a refused value."""
        return (
            f"choose one of {', '.join(self.words)}" if self.words else f"it must be {self.wanted}"
        )


def integers(low: int, high: int | None = None) -> Rule:
    """Return the rule for integers from `low` to `high`, without end if that is None."""

    def accepts(value: object) -> bool:
        return is_int(value) and low <= value and (high is None or value <= high)  # type: ignore[operator]

    wanted = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    return Rule(accepts, wanted)


def floats(low: float, high: float) -> Rule:
    """Return the rule for floating-point numbers from `low` to `high`; NaN is in no interval."""
    return Rule(
        lambda value: isinstance(value, float) and low <= value <= high,
        f"a number from {low:g} to {high:g}",
    )


def spans(high: float) -> Rule:
    """Return the rule for spans of time in seconds, more than none and up to `high`."""
    return Rule(
        lambda value: isinstance(value, float | int) and 0 < value <= high,
        f"more than 0 seconds and at most {high:g}",
    )


def one_of(words: Sequence[str]) -> Rule:
    """Return the rule for one of a few words."""
    return Rule(lambda value: value in words, f"one of {', '.join(words)}", tuple(words))


def is_int(value: object) -> bool:
    """Return true for an integer; to Python, True is one."""
    return isinstance(value, int) and not isinstance(value, bool)


MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 1024
MAX_TOKEN_IDS = 65_536  # of a row's logit_bias, and of its allowed_token_ids
MAX_BIAS = 100.0
_INT32 = 2**31 - 1
MAX_REPETITION = 1024
MAX_TAG_LENGTH = 64


def is_share(value: object) -> bool:
    """Return true for a share above 0 and at most 1."""
    return isinstance(value, float) and 0.0 < value <= 1.0


def is_repetition(value: object) -> bool:
    """Return true for a number of repetitions, or 0."""
    return is_int(value) and (value == 0 or 2 <= value <= MAX_REPETITION)  # type: ignore[operator]


def is_budget(value: object) -> bool:
    """Return true for a number of tokens, or None for any number."""
    return value is None or (is_int(value) and 0 <= value < 2**31)  # type: ignore[operator]


def is_reasoning_tags(value: object) -> bool:
    """Return true for auto, none, or an opening and a closing tag with a comma between."""
    if value in ("auto", "none"):
        return True
    if not isinstance(value, str) or not is_unicode(value):
        return False
    tags = value.split(",")
    return len(set(tags)) == len(tags) == 2 and all(
        0 < len(tag) <= MAX_TAG_LENGTH and tag == tag.strip() for tag in tags
    )


def is_stop(value: object) -> bool:
    """Return true for a tuple of stop strings, not too many and not too long."""
    return (
        isinstance(value, tuple)
        and len(value) <= MAX_STOP_STRINGS
        and all(
            isinstance(text, str) and 0 < len(text) <= MAX_STOP_LENGTH and is_unicode(text)
            for text in value
        )
    )


def is_unicode(text: str) -> bool:
    """Return true for text that UTF-8 can encode: no unpaired surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_id_list(value: object, most: int = MAX_STOP_TOKEN_IDS) -> bool:
    """Return true for a tuple of token ids, not too many."""
    return (
        isinstance(value, tuple)
        and len(value) <= most
        and all(is_int(item) and item >= 0 for item in value)
    )


def as_float(value: object) -> object:
    """Return an integer as a float, any other value unchanged."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _INT32:
        return float(value)  # of hundreds of digits, it has no float and is out of range
    return value


def bias_pairs(value: object) -> object:
    """Return a mapping of token ids to biases as pairs in the order of the ids.

    The ids may be texts, as they are in JSON. A bias of None counts as not there: tables have a
    column for each id that any of their rows names. What is no such mapping is left as it is.
    """
    if not isinstance(value, Mapping):
        return value
    pairs = [(_id_of(key), as_float(bias)) for key, bias in value.items() if bias is not None]
    return tuple(sorted(pairs)) if all(map(_is_pair, pairs)) else value


def _id_of(key: object) -> object:
    if isinstance(key, str) and len(key) < 20 and key.isascii() and key.isdecimal():
        return int(key) if str(int(key)) == key else key
    return key


def _is_pair(pair: object) -> bool:
    """Return true for a pair of a token id and a bias."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        return False
    token_id, bias = pair
    return (
        is_int(token_id)
        and token_id >= 0
        and isinstance(bias, float)
        and -MAX_BIAS <= bias <= MAX_BIAS
    )


def _is_bias(value: object) -> bool:
    """Return true for a tuple of pairs, not too many, each id greater than the one before."""
    return (
        isinstance(value, tuple)
        and len(value) <= MAX_TOKEN_IDS
        and all(map(_is_pair, value))
        and all(one[0] < two[0] for one, two in pairwise(value))
    )


def _are_bad_words(value: object) -> bool:
    """Return true for a tuple of words, not too many, not too long, none of spaces alone."""
    return (
        isinstance(value, tuple)
        and len(value) <= MAX_BAD_WORDS
        and all(
            isinstance(word, str)
            and word.strip() != ""
            and len(word) <= MAX_BAD_WORD_LENGTH
            and is_unicode(word)
            for word in value
        )
    )


LOGIT_BIAS_RULE = Rule(
    _is_bias,
    f"an object of at most {MAX_TOKEN_IDS} token ids, each with a number from {-MAX_BIAS:g} to "
    f"{MAX_BIAS:g}",
)
ALLOWED_TOKEN_IDS_RULE = Rule(
    lambda value: value is None or (value != () and is_id_list(value, MAX_TOKEN_IDS)),
    f"a list of 1 to {MAX_TOKEN_IDS} token ids",
)
BAD_WORDS_RULE = Rule(
    _are_bad_words,
    f"at most {MAX_BAD_WORDS} strings of at most {MAX_BAD_WORD_LENGTH} Unicode characters, none of "
    "them blank",
)
