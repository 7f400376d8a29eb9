"""Readers take their seeds, and end with a documented error for damaged ones; many more are read by
`make test-fuzz`."""

import random
from pathlib import Path

import pytest

from tests.fuzz.mutation import some_bytes
from tests.fuzz.readers import READERS

CHANGED, CHANGED_LONG = 12, 1000
# These start a process to compile in.
STRUCTURES = ("schema", "regex", "grammar")


def check(name: str, folder: Path, count: int) -> None:
    reader = READERS[name]
    read, seeds = reader.within(folder), reader.seeds()
    assert [read(each) for each in seeds] == [""] * len(seeds)
    chance = random.Random(name)
    change = some_bytes(chance)
    refused = [read(reader.mutate(chance.choice(seeds), change)) for _ in range(count)]
    assert any(refused) or count < CHANGED_LONG, "nothing is damage"


@pytest.mark.parametrize("name", [each for each in READERS if each not in STRUCTURES])
def test_damage_ends_in_a_documented_error(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, CHANGED)


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_much_damage_ends_in_a_documented_error(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, CHANGED_LONG)
