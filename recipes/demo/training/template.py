"""A sentence with blanks, at token level: filling it in is array indexing, not tokenizing.

This works because every blank takes a fixed number of tokens whatever fills it (a name or a
team is one token, a digit is one token), which tokenizer.py makes sure of.
"""

from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from pagedrun.recipes.demo.training.directory import Entry, EntryTable, IntArray
from pagedrun.recipes.demo.training.names import FIRST_NAMES, LAST_NAMES, TEAMS
from pagedrun.recipes.demo.training.tokenizer import token_id

# Slots: what a blank asks for. A first name is another token at the start of a line than after
# a space. The slots from FIRST_VALUE_SLOT on are the facts that answers copy.
FIRST_SLOT = 0
SPACED_FIRST_SLOT = 1
LAST_SLOT = 2
FIRST_VALUE_SLOT = 3  # 3 room digits, 4 phone digits, the team
NUM_SLOTS = 11

_MARKER = Entry(name=f"{FIRST_NAMES[0]} {LAST_NAMES[0]}", room="123", phone="4567", team=TEAMS[0])
_MARKER_PIECES = (
    FIRST_NAMES[0],
    f" {FIRST_NAMES[0]}",
    f" {LAST_NAMES[0]}",
    *(" 1", "2", "3"),
    *(" 4", "5", "6", "7"),
    f" {TEAMS[0]}",
)


@dataclass(frozen=True, slots=True)
class Template:
    """Token ids int64 [num_tokens]: a token id, or `~slot` (negative) where a blank is."""

    codes: IntArray

    @classmethod
    def compile(cls, tokenizer: Tokenizer, text: str) -> "Template":
        """Build from text with {name}, {room}, {phone} and {team}."""
        slots = {token_id(tokenizer, piece): slot for slot, piece in enumerate(_MARKER_PIECES)}
        ids = tokenizer.encode(_MARKER.fill(text)).ids
        return cls(np.array([~slots[i] if i in slots else i for i in ids], dtype=np.int64))

    @property
    def slots(self) -> IntArray:
        """The slot at each token, -1 where the token is fixed; int64 [num_tokens]."""
        return np.where(self.codes < 0, ~self.codes, -1)


def fill(codes: IntArray, slot_tokens: IntArray) -> IntArray:
    """Return token ids [..., num_tokens] from codes of that shape and slot tokens [..., slots]."""
    filled = np.take_along_axis(slot_tokens, np.where(codes < 0, ~codes, 0), axis=-1)
    return np.where(codes < 0, filled, codes)


@dataclass(frozen=True, slots=True)
class SlotVocabulary:
    """The token ids of everything that may fill a blank; int64 vectors by index or digit."""

    first: IntArray
    spaced_first: IntArray
    last: IntArray
    digit: IntArray
    spaced_digit: IntArray
    team: IntArray

    @classmethod
    def build(cls, tokenizer: Tokenizer) -> "SlotVocabulary":
        """Look every word up in the tokenizer."""

        def lookup(words: list[str]) -> IntArray:
            return np.array([token_id(tokenizer, word) for word in words], dtype=np.int64)

        digits = [str(digit) for digit in range(10)]
        return cls(
            first=lookup(list(FIRST_NAMES)),
            spaced_first=lookup([f" {name}" for name in FIRST_NAMES]),
            last=lookup([f" {name}" for name in LAST_NAMES]),
            digit=lookup(digits),
            # A number never starts with 0; the first entry only keeps digit and index equal.
            spaced_digit=lookup(["0", *(f" {digit}" for digit in digits[1:])]),
            team=lookup([f" {team}" for team in TEAMS]),
        )

    def slot_tokens(self, table: EntryTable) -> IntArray:
        """Return [num_directories, num_entries, NUM_SLOTS]: the token for each blank."""
        return np.concatenate(
            [
                self.first[table.first_ids][..., None],
                self.spaced_first[table.first_ids][..., None],
                self.last[table.last_ids][..., None],
                self.spaced_digit[table.rooms[..., :1]],
                self.digit[table.rooms[..., 1:]],
                self.spaced_digit[table.phones[..., :1]],
                self.digit[table.phones[..., 1:]],
                self.team[table.team_ids][..., None],
            ],
            axis=-1,
        )
