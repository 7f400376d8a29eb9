"""A closed LLM: what it held is free, and what is asked of it then is a sentence."""

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.llm import LLM
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.errors import ModelError, PagedrunError
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel

SHORT = SamplingParams(max_tokens=3, ignore_eos=True)
SMALL = WindowSize(rows=2)


@pytest.fixture
def own(make_model: MakeModel) -> Iterator[LLM]:
    """One for this test alone, to be closed."""
    with LLM(make_model("llama", "python"), dtype="float32", block_size=16) as llm:
        yield llm


def weights(llm: LLM) -> "weakref.ref[object]":
    assert isinstance(llm._engine, Engine)
    return weakref.ref(llm._engine.loaded.model)


def planners() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "planner"]


def test_weights_and_planner_are_gone_without_a_search_for_garbage(own: LLM) -> None:
    """In the middle of an iteration, whose planner waits; a second time is as good."""
    gc.collect()
    gc.disable()
    try:
        held = weights(own)
        completions = own.as_completed((f"{n}" for n in range(100)), SHORT, window=SMALL)
        next(completions)
        assert planners() == ["planner"]
        own.close()
        assert held() is None
        assert planners() == []
        assert list(completions) == []  # it has ended
        assert own.report["tokens"]["generated"] > 0  # of the iteration that was ended
        own.close()
    finally:
        gc.enable()


def test_its_memory_is_the_system_s_again(make_model: MakeModel) -> None:
    """Weights in pieces of 1 MiB, which the C library would keep for itself."""
    shape = {"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 32}
    model = make_model("llama", "closed", **shape)
    llm = LLM(model, dtype="float32", quantization="int8")
    llm.generate(["a"], SHORT)
    before = resident_anonymous()
    num_bytes = llm.report["memory"]["weights"]
    assert num_bytes > 16 * 2**20
    llm.close()
    assert before - resident_anonymous() > 0.8 * num_bytes


def resident_anonymous() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        (line,) = (line for line in status if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def test_a_closed_one_says_so(make_model: MakeModel) -> None:
    with LLM(make_model("llama", "python"), dtype="float32") as llm:
        (answer,) = llm.generate("a", SHORT)
        not_begun = llm.as_completed("a", SHORT)
    assert answer.outputs  # what was answered stays
    assert llm.max_model_len > 0
    for call in (llm.generate, llm.chat, llm.as_completed):
        with pytest.raises(PagedrunError, match="this LLM is closed"):
            call([[{"role": "user", "content": "a"}]], SHORT)
    assert list(not_begun) == []


def test_an_error_in_the_block_closes_too(make_model: MakeModel) -> None:
    llm = LLM(make_model("llama", "python"), dtype="float32")
    held = weights(llm)
    with pytest.raises(ZeroDivisionError), llm:
        _ = 1 / 0
    assert held() is None


def test_it_is_not_closed_under_another_thread(own: LLM) -> None:
    """The call there goes on to its end, and closing works then."""
    began, may_end = threading.Event(), threading.Event()

    def prompts() -> Iterator[str]:
        yield "a"
        began.set()
        may_end.wait(60)
        yield "b"

    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(own.generate(prompts(), SHORT))))
    thread.start()
    assert began.wait(60)
    with pytest.raises(PagedrunError, match="another thread"):
        own.close()
    may_end.set()
    thread.join()
    assert found == [2]
    own.close()
    with pytest.raises(PagedrunError, match="closed"):
        own.generate("a")


def test_the_bundled_model_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a folder of that name too, which is a path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    with LLM("demo") as llm:
        assert llm.generate("a", SHORT)[0].error is None
    for model in ("./demo", Path("demo")):
        with pytest.raises(ModelError, match="demo is empty"):
            LLM(model)
