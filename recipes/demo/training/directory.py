"""The task: random staff directories, the questions about them and their answers.

A directory is one header line and one line per person. Sampling is array-wise, so that the
training loop can turn thousands of entries into token ids without going through text; the same
arrays give the text of the shipped prompts.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

_FIRST_NAMES = """
    Ada Alan Alice Amos Anna Arlo Bea Ben Beth Boris Cara Carl Cleo Cora Dale Dan
    Dara Dean Dora Earl Eden Ella Elsa Emil Emma Eric Eva Ezra Faye Finn Flora Fred
    Gail Gina Glen Greta Gus Hal Hana Hank Hugo Ian Ida Igor Ines Iris Ivan Jack
    Jana Jean Joel June Kai Kara Karl Kate Kira Kurt Lara Lena Leo Lina Lola Lucy
    Luis Marc Mara Maya Mia Milo Mona Nell Nina Noah Nora Olga Omar Otto Paul Rita
    Rosa Ruth Sara Seth Tess Theo Vera Zoe
"""

_LAST_NAMES = """
    Adler Ames Archer Baker Banks Barton Bell Berg Birch Blake Bond Booth Boyd Brand Brook Burke
    Carr Carter Case Clark Cole Cook Cross Dahl Davis Day Dixon Drake Drew Dunn Ellis Finch
    Fisher Ford Foster Fox Frost Gale Gates Grant Hale Hall Hardy Hart Hayes Hill Holt Hunt
    Irwin Jones Keller Kemp King Kirk Lake Lamb Lane Lang Lee Lloyd Long Lowe Mann Marsh
    Mason Mills Moore Moss Nash Neal Nolan North Owens Park Peck Perry Pike Poole Price Reed
    Rhodes Rowe Sand Sharp Shaw Snow Stone Swan Tate Todd Vance Walsh Ward Webb Wells West
    White Wolf Wood York
"""

_TEAMS = """
    Red Blue Green Amber Coral Ivory Jade Lilac Mint Navy Olive Pearl Ruby Slate Teal Gold
"""

FIRST_NAMES: tuple[str, ...] = tuple(_FIRST_NAMES.split())
LAST_NAMES: tuple[str, ...] = tuple(_LAST_NAMES.split())
TEAMS: tuple[str, ...] = tuple(_TEAMS.split())


Kind = Literal["room", "phone", "team", "show"]
IntArray = npt.NDArray[np.int64]

NUM_ROOM_DIGITS = 3
NUM_PHONE_DIGITS = 4

HEADERS: tuple[str, ...] = (
    "You answer questions about the staff of this office. Each line below is one person.",
    "This is the staff directory of the company. Answer from it in one short sentence.",
    "Below are the people who work in this building. Use the list to answer the question.",
)

QUESTIONS: dict[Kind, tuple[str, ...]] = {
    "room": (
        "Which room is {name} in?",
        "What room does {name} have?",
        "Where do I find {name}?",
        "What is the room of {name}?",
        "In which room does {name} work?",
    ),
    "phone": (
        "What is the phone number of {name}?",
        "Which phone does {name} have?",
        "How do I call {name}?",
        "What number do I dial for {name}?",
    ),
    "team": (
        "Which team is {name} on?",
        "What is the team of {name}?",
        "In which team does {name} work?",
    ),
    "show": ("Show {name}.", "Show the entry of {name}."),
}

ANSWERS: dict[Kind, str] = {
    "room": "{name} is in room {room}.",
    "phone": "{name} has phone {phone}.",
    "team": "{name} is on team {team}.",
    "show": "{name}: room {room}, phone {phone}, team {team}.",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One person of a directory, as text."""

    name: str
    room: str
    phone: str
    team: str

    def fill(self, text: str) -> str:
        """Return `text` with {name}, {room}, {phone} and {team} replaced."""
        return text.format(name=self.name, room=self.room, phone=self.phone, team=self.team)


@dataclass(frozen=True, slots=True)
class EntryTable:
    """The entries of several directories, as indices and digits (all int64).

    `first_ids`, `last_ids`, `team_ids`: [num_directories, num_entries], indices into the lists
    of names.py. `rooms` and `phones`: the same shape with a last axis of 3 and 4 decimal digits.
    """

    first_ids: IntArray
    last_ids: IntArray
    rooms: IntArray
    phones: IntArray
    team_ids: IntArray

    def entries(self, directory_id: int) -> tuple[Entry, ...]:
        """Return the entries of one directory as text, in order."""
        return tuple(
            Entry(
                name=f"{FIRST_NAMES[first]} {LAST_NAMES[last]}",
                room="".join(map(str, room)),
                phone="".join(map(str, phone)),
                team=TEAMS[team],
            )
            for first, last, room, phone, team in zip(
                self.first_ids[directory_id],
                self.last_ids[directory_id],
                self.rooms[directory_id],
                self.phones[directory_id],
                self.team_ids[directory_id],
                strict=True,
            )
        )


def directory_text(header: str, entries: tuple[Entry, ...]) -> str:
    """Return the system prompt: the header line, then one line per entry, no newline at the end."""
    return "\n".join([header, *(entry.fill(ANSWERS["show"]) for entry in entries)])


def sample_entries(
    rng: np.random.Generator, num_directories: int, num_entries: int, *, crowded: bool
) -> EntryTable:
    """Draw directories whose entries have distinct full names and independent random fields.

    `crowded` draws the names of each directory from few first and few last names, so that most
    entries share either half of their name with another one and only the pair tells them apart.
    """
    num_first, num_last = len(FIRST_NAMES), len(LAST_NAMES)
    if crowded:
        num_first = num_last = int(np.ceil(np.sqrt(1.5 * num_entries)))
    first_choice = _distinct(rng, num_directories, num_first, len(FIRST_NAMES))
    last_choice = _distinct(rng, num_directories, num_last, len(LAST_NAMES))
    pairs = _distinct(rng, num_directories, num_entries, num_first * num_last)
    shape = (num_directories, num_entries)
    return EntryTable(
        first_ids=np.take_along_axis(first_choice, pairs // num_last, axis=1),
        last_ids=np.take_along_axis(last_choice, pairs % num_last, axis=1),
        rooms=_digits(rng, shape, NUM_ROOM_DIGITS),
        phones=_digits(rng, shape, NUM_PHONE_DIGITS),
        team_ids=rng.integers(len(TEAMS), size=shape),
    )


def _distinct(rng: np.random.Generator, num_rows: int, count: int, population: int) -> IntArray:
    """Draw `count` distinct integers below `population` for each row, in random order."""
    return rng.random((num_rows, population)).argsort(axis=1)[:, :count]


def _digits(rng: np.random.Generator, shape: tuple[int, int], num_digits: int) -> IntArray:
    """Draw decimal digits [*shape, num_digits]; the first one is never 0."""
    digits = rng.integers(10, size=(*shape, num_digits))
    digits[..., 0] = rng.integers(1, 10, size=shape)
    return digits
