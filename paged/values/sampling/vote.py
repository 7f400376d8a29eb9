"""Vote: what an answer votes for, read from its text by a regular expression or a JSON path.

Regular expressions are a stranger's, so RE2 matches them (in pyarrow): its time is linear in the
text and its memory bounded, whatever the expression; look-around and back-references it refuses.
"""

import json
from collections.abc import Callable
from functools import lru_cache

JSON_PATH = "json:"
MAX_VOTE_LENGTH = 1024

Reader = Callable[[str], str | None]
"""Gives what a text votes for, None for nothing."""


def is_vote(value: object) -> bool:
    """Whether a value is a regular expression, or `json:` and a path; None for no vote."""
    if value is None:
        return True
    if not isinstance(value, str) or not 0 < len(value) <= MAX_VOTE_LENGTH:
        return False
    try:
        vote_reader(value)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=256)
def vote_reader(vote: str) -> Reader:
    """Return what reads a vote from a text.

    A regular expression gives its first group, or the whole match if it has none, of its first
    match. `json:a.0.b` gives what is there in a text that is JSON: names and, in lists, numbers; a
    text as it is, anything else as JSON. Blanks around a vote are left out, and an empty one is
    none. Raises `ValueError` for what is neither.
    """
    if vote.startswith(JSON_PATH):
        return _json_reader(vote.removeprefix(JSON_PATH))
    return _regex_reader(vote)


def _regex_reader(pattern: str) -> Reader:
    import pyarrow  # imported here: it takes long
    from pyarrow import compute

    whole = f"\\A(?s:.*?)({pattern})(?s:.*)\\z"

    def matches(text: str) -> bool:
        found: bool = compute.match_substring_regex(pyarrow.scalar(text), pattern=pattern).as_py()
        return found

    def group(text: str, number: int) -> str:
        found = compute.replace_substring_regex(
            pyarrow.scalar(text), pattern=whole, replacement=f"\\{number}"
        )
        return str(found.as_py())

    matches("")  # raises a ValueError for what RE2 does not take
    group("", 1)
    number = 2
    try:
        group("", number)
    except ValueError:  # there is no group but the one around all of it
        number = 1
    return lambda text: group(text, number).strip() or None if matches(text) else None


def _json_reader(path: str) -> Reader:
    keys = path.split(".")
    if not all(keys):
        raise ValueError("a path has no empty name")

    def read(text: str) -> str | None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        for key in keys:
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                return None
        if value is None:
            return None
        found = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        return found.strip() or None

    return read
