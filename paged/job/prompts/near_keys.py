"""Keys of a row that are all but a parameter's name: data that was likely meant as a setting."""

from functools import lru_cache

from pagedrun.paged.values.flags import flag_fields
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.sampling_params import SamplingParams

MIN_CHARS = 4  # of key and name; a shorter one is near too many words
_NUMBERS = frozenset(
    each.field for each in flag_fields(SamplingParams) if each.kind in (int, float, int | None)
)
_SWITCHES = frozenset(each.field for each in flag_fields(SamplingParams) if each.kind is bool)


@lru_cache(maxsize=4096)
def near_key(column: str, known: frozenset[str]) -> str | None:
    """Return the key that a column is one letter from, or the same but for case, `_` and `-`.

    None where it is one of `known` itself, or near none.
    """
    if column in known or len(column) < MIN_CHARS or len(column) > 64:
        return None
    names = sorted(name for name in known if len(name) >= MIN_CHARS)
    alike = (name for name in names if _folded(name) == _folded(column))
    near = (name for name in names if _is_one_letter_off(column.lower(), name))
    return next(alike, None) or next(near, None)


def could_be(name: str, value: JSONValue) -> bool:
    """Whether a value is of the kind that a parameter takes: other columns are data."""
    name = {"max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens"}.get(name, name)
    if name in _NUMBERS:
        return _is_number(value)
    if name in _SWITCHES:
        return isinstance(value, bool)
    return value is not None and not isinstance(value, bool | int | float)


def _is_number(value: JSONValue) -> bool:
    if isinstance(value, str):  # a table without types has numbers as text
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float) and not isinstance(value, bool)


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


def _is_one_letter_off(column: str, name: str) -> bool:
    """Whether one letter more, less or in another place makes `name` of `column`; in names longer
    than `MIN_CHARS` also another letter: short words are near each other, as note and vote are."""
    if len(column) == len(name):
        differs = [place for place, (a, b) in enumerate(zip(column, name, strict=True)) if a != b]
        if len(differs) == 1:
            return len(name) > MIN_CHARS
        if len(differs) != 2 or differs[1] != differs[0] + 1:
            return False
        first, second = differs
        return column[first] == name[second] and column[second] == name[first]
    short, long = sorted((column, name), key=len)
    if len(long) != len(short) + 1:
        return False
    return any(long[:place] + long[place + 1 :] == short for place in range(len(long)))
