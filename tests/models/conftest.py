"""Oracles of small models, each made once a test module."""

from collections.abc import Sequence

import pytest

from tests.models.oracle import LENGTHS, MakeOracle, oracle_of
from tests.support.families import Tiny, save_tiny
from tests.support.oracle import Oracle


@pytest.fixture(scope="module")
def make_oracle(tmp_path_factory: pytest.TempPathFactory) -> MakeOracle:
    made: dict[str, Oracle] = {}

    def make(name: str, tiny: Tiny, lengths: Sequence[int] = LENGTHS) -> Oracle:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = save_tiny(tiny, folder)
            model.set_experts_implementation("eager")
            made[name] = oracle_of(model, folder, lengths)
        return made[name]

    return make
