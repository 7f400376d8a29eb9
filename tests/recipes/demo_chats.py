"""What the demo's chats say, read without the code that wrote them."""

import re
from typing import Any

Row = dict[str, Any]

ENTRY = re.compile(r"(\w+ \w+): room (\d{3}), phone (\d{4}), team (\w+)\.")
NAME_IN_QUESTION = re.compile(r"[A-Z]\w+ [A-Z]\w+")


def read_directory(system: str) -> dict[str, tuple[str, str, str]]:
    """Parse a system prompt without the code that wrote it: name -> room, phone, team."""
    header, *lines = system.split("\n")
    assert not ENTRY.fullmatch(header)
    matches = [ENTRY.fullmatch(line) for line in lines]
    people = {m[1]: (m[2], m[3], m[4]) for m in matches if m is not None}
    assert len(people) == len(lines), "a line is no entry, or a name occurs twice"
    return people


def answer_from(people: dict[str, tuple[str, str, str]], question: str) -> str:
    """Answer by keywords, without the phrasings' own table."""
    names = [match for match in NAME_IN_QUESTION.findall(question) if match in people]
    if not names:  # "Show Ada Moss." is capitalised from its first word on
        names = [name for name in people if name in question]
    (name,) = names
    room, phone, team = people[name]
    if question.startswith("Show"):
        return f"{name}: room {room}, phone {phone}, team {team}."
    if "team" in question:
        return f"{name} is on team {team}."
    if re.search("phone|call|dial", question):
        return f"{name} has phone {phone}."
    assert re.search("room|find", question)
    return f"{name} is in room {room}."


def turn(role: str, content: str) -> str:
    """Return one turn of a conversation as the chat template writes it."""
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"
