"""Families with recurrent layers against Transformers, driven by hand; and no cut shows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.driven_model import DrivenModel, Part
from tests.support.families import RECURRENT, save_tiny

NUM_TOKENS = 12
LENGTHS = (1, 7, 64, 65, 200, 300)
# Transformers takes the tokens of a prompt of a DeltaNet in chunks, which rounds otherwise.
CLOSE = {"lfm2": 1e-4, "qwen3": 1e-3}
TIE = 1e-3

Saved = tuple[Path, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    made: dict[str, Saved] = {}

    def make(name: str) -> Saved:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = folder, save_tiny(name, folder)
        return made[name]

    return make


def prompt_of(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    tokens: list[int] = torch.randint(256, (max(LENGTHS),), generator=generator).tolist()
    return tokens[:length]


def generate(driven: DrivenModel, prompts: list[list[int]]) -> list[Tensor]:
    """Return all logits of greedy answers, [NUM_TOKENS, vocab_size] a prompt, side by side."""
    outputs: list[list[int]] = [[] for _ in prompts]
    found = []
    for step in range(NUM_TOKENS):
        logits = driven.step(
            *(
                Part(i, prompt, output, len(prompt) + step - 1 if step else 0, len(prompt) + step)
                for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
            )
        )
        found.append(logits)
        for output, token in zip(outputs, logits.argmax(-1).tolist(), strict=True):
            output.append(token)
    return list(torch.stack(found, 1))


@pytest.mark.parametrize("name", RECURRENT)
def test_tokens_and_first_logits_are_those_of_transformers(
    name: str, saved: Callable[[str], Saved]
) -> None:
    folder, oracle = saved(name)
    prompts = [prompt_of(length) for length in LENGTHS]
    answers = generate(DrivenModel(folder, len(prompts)), prompts)
    said = set()
    for prompt, logits in zip(prompts, answers, strict=True):
        with torch.inference_mode():
            # Nothing is kept: every step's logits come from the whole sequence.
            output = logits.argmax(-1).tolist()
            whole = torch.tensor([[*prompt, *output[:-1]]])
            expected = oracle(whole, use_cache=False).logits[0, len(prompt) - 1 :]
        close = next(close for start, close in CLOSE.items() if name.startswith(start))
        assert (logits[0] - expected[0]).abs().max() < close
        for step, token in enumerate(output):
            top = expected[step].topk(2)
            if top.values[0] - top.values[1] < TIE:
                break  # two programs may differ from here on
            assert token == top.indices[0], f"{len(prompt)} tokens, answer {step}"
            said.add(token)
    assert len(said) > 12, "it says one thing"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["lfm2-biases", "qwen3_5", "qwen3_next"])
def test_no_cut_and_no_company_changes_a_bit(
    name: str, dtype: str, saved: Callable[[str], Saved]
) -> None:
    """Prompts in pieces, two tokens of an answer at once, and prompt and answer in one chunk."""
    folder, _ = saved(name)
    driven = DrivenModel(folder, 4, dtype=dtype)
    prompt, output = prompt_of(70), [9, 8, 7]
    expected = driven.step(Part(0, prompt, output, 0, 73))
    states = [[array.clone() for array in driven.states.layer(i)] for i in range(2)]
    neighbour = Part(3, prompt_of(41), [], 0, 41)
    for cuts in ([1, 2, 64], [37], [69], [71], [70, 71, 72]):
        driven.states.layer(0)[0][1] = torch.nan
        for start, end in zip([0, *cuts], [*cuts, 73], strict=True):
            logits = driven.step(neighbour, Part(1, prompt, output, start, end))
        assert torch.equal(logits[-1], expected[0]), cuts
        for layer, arrays in enumerate(states):
            for before, now in zip(arrays, driven.states.layer(layer), strict=True):
                assert torch.equal(now[1], before[0])


def test_a_sequence_goes_on_from_the_state_of_another(saved: Callable[[str], Saved]) -> None:
    folder, _ = saved("qwen3_5")
    driven = DrivenModel(folder, 2)
    prompt = prompt_of(40)
    driven.step(Part(0, prompt, [], 0, 32))
    before = [each[0].clone() for each in driven.states.layer(0)]
    # The blocks of its first 32 tokens are its own: they are computed for it once more.
    driven.step(Part(1, prompt, [], 0, 32))
    forked = driven.step(Part(1, prompt, [], 32, 40, read=0))
    for array, kept in zip(driven.states.layer(0), before, strict=True):
        assert torch.equal(array[0], kept)
    assert torch.equal(forked, driven.step(Part(0, prompt, [], 32, 40)))


def test_states_are_read_even_where_no_logits_are_wanted(saved: Callable[[str], Saved]) -> None:
    """The last layer leaves tokens out that nothing is asked of, but only behind its state."""
    folder, _ = saved("lfm2-biases")  # its last layer is recurrent
    driven = DrivenModel(folder, 2)
    prompt = prompt_of(30)
    assert len(driven.step(Part(0, prompt, [], 0, 20))) == 0
    logits = driven.step(Part(0, prompt, [], 20, 30))
    assert torch.equal(logits, driven.step(Part(1, prompt, [], 0, 30)))
