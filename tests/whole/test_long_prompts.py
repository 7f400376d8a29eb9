"""Prompts of 32,768 tokens through windows of 1,024, in memory that would not hold all of one."""

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.engines import load_engine

NUM_TOKENS = 32_768
WINDOW = 1_024
CHUNK = 512
BLOCK = 64
NUM_GENERATED = 8
NUM_LAYERS = 2


@torch.inference_mode()
def expected(folder: Path, prompt: Seq[int]) -> list[int]:
    """What Transformers generates behind the end of a prompt, at the same positions: what lies
    further back than a window for each layer reaches no token of the answer."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    first = len(prompt) - NUM_LAYERS * WINDOW
    ids = list(prompt[first:])
    for _ in range(NUM_GENERATED):
        positions = torch.arange(first, first + len(ids))[None]
        logits = model(torch.tensor([ids]), position_ids=positions, use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[-NUM_GENERATED:]


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    fields = {"sliding_window": WINDOW, "max_position_embeddings": NUM_TOKENS + 64}
    return make_model("mistral", "long", num_hidden_layers=NUM_LAYERS, **fields)


def test_a_long_prompt_takes_memory_for_its_window_only(folder: Path) -> None:
    """Two rows that part in the middle: what the second one's window sees there is kept for it,
    long after the first has gone on."""
    generator = torch.Generator().manual_seed(3)
    prompt = torch.randint(256, (NUM_TOKENS,), generator=generator).tolist()
    half = NUM_TOKENS // 2 - 100
    prompts = [prompt, [*prompt[:half], *prompt[half + 1 :], 7]]
    params = SamplingParams(max_tokens=NUM_GENERATED, ignore_eos=True)
    config = EngineConfig(
        model=folder,
        dtype="float32",
        device="cpu",
        block_size=BLOCK,
        max_num_batched_tokens=CHUNK,
        max_num_seqs=2,
    )
    engine = load_engine(config)
    whole = NUM_TOKENS * engine.bytes_per_token
    engine = engine.reconfigured(kv_cache_memory_bytes=whole // 5)
    run = engine.start([Request(i, tuple(each), params) for i, each in enumerate(prompts)])
    done = {each.request.index: each for each in run}
    for index, each in enumerate(prompts):
        assert list(done[index].outputs[0].token_ids) == expected(folder, each)
    assert run.cache.num_bytes <= whole // 5
    assert run.report()["prefix"]["hit_tokens"] == half // BLOCK * BLOCK
    assert not any(run.report()["preemptions"].values())
