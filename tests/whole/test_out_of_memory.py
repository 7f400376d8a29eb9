"""Running out of memory in a step: smaller pieces, the same answers, and an end to the retries."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from pagedrun import LLM, SamplingParams
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.paged.cache.kv_cache import KVCache, KVMemory
from pagedrun.paged.execution import pool_memory
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.models.decoder import Decoder
from pagedrun.paged.models.model import ForwardBatch
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import EngineError, UsageError
from pagedrun.paged.values.request import Request
from tests.conftest import MakeModel
from tests.support.engines import load_engine
from tests.support.every_pair import every_pair
from tests.support.families import save_tiny
from tests.support.tiny_models import tiny_engine

PROMPTS = [[7, 8, 9] * 30 + [index] for index in range(6)] + [list(range(200))]
PARAMS = [SamplingParams(max_tokens=8, n=1 + i % 2, temperature=i % 2, seed=i) for i in range(7)]
HOST_ERROR = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"


class Shortage:
    """A model that has memory for steps of at most `room` tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int, error: Exception) -> None:
        self.tried: list[int] = []
        compute = Decoder.hidden

        def hidden(model: Decoder, batch: ForwardBatch, cache: KVCache) -> Tensor:
            self.tried.append(len(batch.input_ids))
            if len(batch.input_ids) > room:
                raise error
            return compute(model, batch, cache)

        monkeypatch.setattr(Decoder, "hidden", hidden)


@every_pair(
    in_turn="error",
    room=[100, 37, 5, 1],
    error=[torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError(HOST_ERROR)],
)
def test_the_answers_stay_the_same(
    room: int, error: Exception, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(make_model("qwen3", "memory"), dtype="float32")
    expected = llm.generate(PROMPTS, PARAMS)
    shortage = Shortage(monkeypatch, room, error)
    assert [c.outputs for c in llm.generate(PROMPTS, PARAMS)] == [c.outputs for c in expected]
    failed = [count for count in shortage.tried if count > room]
    assert 1 <= len(failed) <= 10, "each failure halves what is tried"
    assert failed == sorted(failed, reverse=True)


def test_a_step_in_pieces_reads_its_windows(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies behind the window of the whole chunk was given back; its last piece needs less."""
    llm = LLM(make_model("mistral", "memory", sliding_window=20), dtype="float32", block_size=16)
    expected = llm.generate(PROMPTS, PARAMS)
    Shortage(monkeypatch, 37, MemoryError())
    assert [c.outputs for c in llm.generate(PROMPTS, PARAMS)] == [c.outputs for c in expected]


def test_a_piece_that_is_computed_is_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has changed the states of recurrent layers."""
    save_tiny("lfm2", tmp_path)
    engine = load_engine(EngineConfig(model=tmp_path, dtype="float32", device="cpu"))
    asked = [Request(0, tuple(range(120)), SamplingParams(max_tokens=8, ignore_eos=True))]
    [expected] = engine.start(asked)
    compute, tried = Decoder.hidden, []

    def hidden(model: Decoder, batch: ForwardBatch, cache: KVCache) -> Tensor:
        tried.append(len(batch.input_ids))
        if len(tried) in (1, 3):  # the step, and its second half
            raise MemoryError
        return compute(model, batch, cache)

    monkeypatch.setattr(Decoder, "hidden", hidden)
    [found] = engine.start(asked)
    assert tried[:5] == [120, 60, 60, 30, 30]
    assert found.outputs == expected.outputs


class OwnMemory(Device):
    """A device with a memory of its own, whose pools and graphs the next run gets."""

    __slots__ = ()

    @property
    def has_own_memory(self) -> bool:
        return True


def test_captured_steps_give_their_memory_back(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's memory keeps graphs for the next run: the run alone cannot let go of them."""
    device = OwnMemory(torch.device("cpu"), CpuBackend(), async_scheduling=False, graphs=True)
    config = EngineConfig(model=make_model("qwen3", "memory"), dtype="float32", max_num_seqs=1)
    loaded = load_engine(config).loaded
    budget = MemoryBudget(2**30, 2**30, 2**24, is_filled=True)
    memory = PoolMemory(loaded.model, loaded.sampler, device, budget)
    engine = Engine(config, replace(loaded, device=device, memory=memory))
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    requests = [Request(index, (7,) * size, params) for index, size in enumerate((10, 200))]
    assert [completion.error for completion in engine.start(requests[:1])] == [None]
    run = engine.start(requests)
    assert run.captured_shapes, "the next run gets what the last one captured"
    Shortage(monkeypatch, 100, torch.OutOfMemoryError("CUDA out of memory"))
    assert [completion.error for completion in run] == [None, None]
    assert engine.start(requests[:1]).captured_shapes == []


def test_a_pool_that_has_no_room_any_more_names_what_to_do(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU another process may have taken what was free when the model was loaded."""
    engine = load_engine(EngineConfig(model=make_model("qwen3", "memory"), dtype="float32"))

    def full(*arguments: object) -> KVMemory:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(pool_memory, "KVMemory", full)
    asked = [Request(0, (7,), SamplingParams(max_tokens=4))]
    with pytest.raises(UsageError, match=r"no room any more for a KV pool .* kv_cache_memory"):
        engine.start(asked)


class Releasing(Device):
    """A device that notes whether a tensor was still there when it gave memory back."""

    __slots__ = ()
    held: ClassVar[list[weakref.ref[Tensor]]] = []
    there: ClassVar[list[bool]] = []

    def release_unused_memory(self) -> None:
        self.there.extend(each() is not None for each in self.held)


def test_a_failed_step_holds_nothing_when_memory_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error that is handled has frames, and they have the step's tensors."""
    device = Releasing(torch.device("cpu"), Backend(), async_scheduling=False)
    engine = tiny_engine(on=device, num_layers=1, dtype="float32", device="cpu")
    compute = Decoder.hidden

    def hidden(model: Decoder, batch: ForwardBatch, cache: KVCache) -> Tensor:
        partials = torch.zeros(3)
        device.held.append(weakref.ref(partials))
        if len(batch.input_ids) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute(model, batch, cache)

    monkeypatch.setattr(Decoder, "hidden", hidden)
    params = SamplingParams(max_tokens=2, temperature=0.0)
    list(engine.start([Request(0, (7,) * 20, params)]))
    assert device.there
    assert not any(device.there)


def test_no_endless_retry(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(make_model("qwen3", "memory"), dtype="float32")
    shortage = Shortage(monkeypatch, 0, MemoryError())
    with pytest.raises(EngineError, match="out of memory with a single token in the step"):
        llm.generate(PROMPTS, PARAMS)
    assert len(shortage.tried) < 15


def test_other_errors_are_not_hidden(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(make_model("qwen3", "memory"), dtype="float32")
    Shortage(monkeypatch, 50, RuntimeError("size mismatch"))
    with pytest.raises(RuntimeError, match="size mismatch"):
        llm.generate(PROMPTS, PARAMS)
