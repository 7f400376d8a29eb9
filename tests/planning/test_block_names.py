"""The keys of a window's blocks, against a chain hashed for each prompt by itself."""

import random
from itertools import pairwise

import numpy as np
import pytest

from pagedrun.paged.planning import prefix_reuse as block_names
from pagedrun.paged.planning.prefix_reuse import BlockKeys
from pagedrun.paged.values.planned_request import BlockKey, block_digest

SIZE = 3


class Hashing:
    """Counts the blocks that are hashed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_blocks = 0
        monkeypatch.setattr(block_names, "block_digest", self._digest)

    def _digest(self, parent: bytes, token_ids: tuple[int, ...]) -> bytes:
        self.num_blocks += 1
        return block_digest(parent, token_ids)


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> Hashing:
    return Hashing(monkeypatch)


def prompts_of(seed: int) -> list[tuple[int, ...]]:
    """Nested prompts in the order of a walk."""
    pick = random.Random(seed)
    return sorted(
        tuple(pick.choices([0, 70_000], k=pick.randint(1, 14))) for _ in range(pick.randint(1, 30))
    )


def num_common_blocks(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    keys = zip(BlockKey.chain(one, SIZE), BlockKey.chain(two, SIZE), strict=False)
    return sum(a == b for a, b in keys)


@pytest.mark.parametrize("seed", range(40))
def test_every_key_is_that_of_its_prompt_and_is_hashed_once(seed: int, hashing: Hashing) -> None:
    prompts = prompts_of(seed)
    hits = [0, *(num_common_blocks(one, two) for one, two in pairwise(prompts))]
    needed = np.maximum(hits, [*hits[1:], 0])
    names = BlockKeys(prompts, needed, np.array(hits), SIZE)

    chains = [BlockKey.chain(prompt, SIZE) for prompt in prompts]
    expected = [tuple(keys[:num]) for keys, num in zip(chains, needed, strict=True)]
    num_hashed = hashing.num_blocks
    assert num_hashed == len({key.digest for keys in expected for key in keys})
    assert list(names) == list(names) == expected
    assert hashing.num_blocks == num_hashed, "whoever iterates must not have to hash"


def test_rows_next_to_each_other_share_the_objects() -> None:
    prompts = [(1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6, 8), (1, 2, 3, 9, 9, 9)]
    first, second, third = BlockKeys(prompts, np.array([2, 2, 1]), np.array([0, 2, 1]), SIZE)
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert third[0] is first[0]


def test_rows_without_keys() -> None:
    nothing = np.zeros(2, dtype=np.int64)
    assert list(BlockKeys([(1, 2, 3), (4,)], nothing, nothing, SIZE)) == [(), ()]
