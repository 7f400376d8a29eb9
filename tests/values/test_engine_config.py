"""EngineConfig: each field is checked, and the flag is named as the user types it."""

from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError

MODEL = Path("model")
LEAST = {
    "block_size": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "swap_space_bytes": 0,
    "max_model_len": 2,
    "num_blocks": 1,
    "kv_cache_memory_bytes": 1,
}


def config(**fields: Any) -> EngineConfig:
    return EngineConfig(model=MODEL, **fields)


@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_numbers_have_a_least_value(name: str, least: int) -> None:
    assert getattr(config(**{name: least}), name) == least
    for value in (least - 1, -5):
        with pytest.raises(UsageError) as caught:
            config(**{name: value})
        assert str(caught.value) == f"{name} is {value}; it must be an integer of at least {least}"
        assert caught.value.field == name


@pytest.mark.parametrize("name", ["max_model_len", "num_blocks", "kv_cache_memory_bytes"])
def test_what_the_engine_decides_by_default(name: str) -> None:
    assert getattr(config(), name) is None


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("device", ["auto", "cpu", "cuda"], ["cuda:0", "CPU", ""]),
        ("dtype", ["auto", "float32", "bfloat16", "float16"], ["int8", "torch.float32", ""]),
        ("preemption_mode", ["swap", "recompute"], ["SWAP", "none", ""]),
    ],
)
def test_words_are_chosen_from_a_list(name: str, accepted: list[str], refused: list[str]) -> None:
    for word in accepted:
        assert getattr(config(**{name: word}), name) == word
    for word in refused:
        with pytest.raises(UsageError, match=f"^{name} is {word!r}; choose one of ") as caught:
            config(**{name: word})
        assert all(word in str(caught.value) for word in accepted)


def test_defaults() -> None:
    chosen = config()
    assert (chosen.block_size, chosen.max_num_seqs, chosen.max_num_batched_tokens) == (
        16,
        128,
        2048,
    )
    assert chosen.prefix_caching
    assert chosen.preemption_mode == "swap"
