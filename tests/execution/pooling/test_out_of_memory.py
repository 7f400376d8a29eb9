"""Running out of memory in a pass of texts: smaller steps, the same bytes, few retries."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from pagedrun.paged.execution.pooling.flat_pass import FlatPass
from pagedrun.paged.models.pooler import Rows
from pagedrun.paged.values.pooling import PooledText
from tests.support.pooled_engines import pooled_model, requests, results
from tests.support.tiny_encoders import texts, write_model

LENGTHS = [3, 20, 1, 60, 20, 9, 30, 30, 5, 5, 5, 90]
HOST_ERROR = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"


class Shortage:
    """A pass that has memory for steps of at most `room` tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int, error: Exception) -> None:
        self.tried: list[int] = []
        compute = FlatPass.__call__

        def call(flat: FlatPass, given: Sequence[PooledText]) -> Rows:
            self.tried.append(sum(len(each.token_ids) for each in given))
            if self.tried[-1] > room:
                raise error
            return compute(flat, given)

        monkeypatch.setattr(FlatPass, "__call__", call)


@pytest.mark.parametrize("room", [200, 100, 92])
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError(HOST_ERROR)]
)
def test_steps_are_halved_and_vectors_stay_the_same(
    room: int, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "bert")
    model = pooled_model(tmp_path)
    engine, asked = model.load_engine(), requests(model, texts(LENGTHS))
    expected = results(engine, asked)
    shortage = Shortage(monkeypatch, room, error)
    found = results(engine, asked)
    assert all(np.array_equal(found[index], expected[index]) for index in expected)
    failed = [each for each in shortage.tried if each > room]
    assert 1 <= len(failed) <= 3, "each failure halves what is tried"
    assert failed == sorted(failed, reverse=True)


def test_a_text_that_does_not_fit_alone_is_an_error_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "bert")
    model = pooled_model(tmp_path)
    engine, asked = model.load_engine(), requests(model, texts(LENGTHS))
    expected = results(engine, asked)
    Shortage(monkeypatch, 61, MemoryError())
    by_index = {each.request.index: each for each in engine.start(asked)}
    failed = {index: each.error for index, each in by_index.items() if each.error is not None}
    assert [(index, error.code) for index, error in failed.items()] == [
        (3, "out_of_memory"),
        (11, "out_of_memory"),
    ]
    assert "a text of 92 tokens does not fit into memory" in str(failed[11].marked)
    for index, each in by_index.items():
        if index not in failed:
            assert each.pooled is not None
            assert np.array_equal(each.pooled[0], expected[index])


def test_other_errors_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path, "bert")
    model = pooled_model(tmp_path)
    engine, asked = model.load_engine(), requests(model, texts(LENGTHS))
    Shortage(monkeypatch, 0, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        results(engine, asked)


@pytest.mark.parametrize(("room", "tried"), [(90, [90, 30]), (89, [90, 30, 30, 30, 30])])
def test_texts_as_long_as_the_context_are_computed_in_smaller_steps(
    room: int, tried: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "qwen3")
    model = pooled_model(tmp_path, engine={"max_model_len": 30, "max_num_batched_tokens": 90})
    engine, asked = model.load_engine(), requests(model, texts([30, 5, 30, 30, 30, 5]))
    expected = results(engine, asked)
    shortage = Shortage(monkeypatch, room, MemoryError())
    found = results(engine, asked)
    assert shortage.tried == tried
    assert all(np.array_equal(found[index], expected[index]) for index in expected)


def test_a_text_as_long_as_the_context_that_does_not_fit_is_an_error_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "qwen3")
    model = pooled_model(tmp_path, engine={"max_model_len": 30})
    engine, asked = model.load_engine(), requests(model, texts([30, 5, 30]))
    Shortage(monkeypatch, 29, MemoryError())
    by_index = {each.request.index: each.error for each in engine.start(asked)}
    codes = {index: error and error.code for index, error in by_index.items()}
    assert codes == {0: "out_of_memory", 1: None, 2: "out_of_memory"}
