"""Completions as they finish: the same answers, flat memory, and an end however one leaves."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.llm import LLM
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.errors import PagedrunError
from pagedrun.paged.values.prompt_input import PromptInput
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.alive import Alive, count_alive
from tests.support.command import Command
from tests.support.jsonl import read_jsonl, write_jsonl

Planners = Callable[[], list[str]]
ONE = SamplingParams(max_tokens=1)
SHORT = SamplingParams(max_tokens=3, ignore_eos=True)
SMALL = WindowSize(rows=4)


class Numbered(Iterator[PromptInput]):
    """Different prompts without end; says how many were read, and in which threads."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.num_read = 0
        self.threads: set[str] = set()
        self.error = OSError("the source is gone")
        self._fails_at = fails_at

    def __next__(self) -> PromptInput:
        self.threads.add(threading.current_thread().name)
        if self.num_read == self._fails_at:
            raise self.error
        self.num_read += 1
        return [self.num_read // 256, self.num_read % 256]


def token_ids(completion: Completion) -> list[tuple[int, ...]]:
    assert completion.error is None, completion.error
    return [output.token_ids for output in completion.outputs]


@pytest.fixture(scope="module")
def expected(shared_llm: LLM) -> list[list[tuple[int, ...]]]:
    return list(map(token_ids, shared_llm.generate(["After", "all"], SHORT)))


class Clean:
    """`check` that an iteration leaves nothing behind of what was made in it."""

    def __init__(
        self, llm: LLM, expected: list[list[tuple[int, ...]]], planners: Planners, made: Alive
    ) -> None:
        self._llm = llm
        self._expected = expected
        self._planners = planners
        self._made = made

    def check(self) -> None:
        """Nothing is left, and the next call has the answers of any other."""
        assert self._planners() == []
        assert len(self._made) == 0
        found = self._llm.generate(["After", "all"], SHORT)
        assert list(map(token_ids, found)) == self._expected


@pytest.fixture
def clean(llm: LLM, expected: list[list[tuple[int, ...]]], planners: Planners) -> Iterator[Clean]:
    with count_alive(KVCache, Plan) as made:
        yield Clean(llm, expected, planners, made)


def test_the_answers_are_those_of_generate_and_of_the_command(
    llm: LLM, make_model: MakeModel, pagedrun: Command, tmp_path: Path
) -> None:
    """Rows that share prefixes across windows, greedy and drawn: the stream is keyed by the row."""
    shared = "The same beginning of many prompts, which is longer than a block. "
    rows: list[dict[str, Any]] = [
        {
            "prompt": f"{shared * (index % 3)}{index % 7}",
            "temperature": index % 2,
            "n": 1 + index % 3,
        }
        for index in range(23)
    ]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    output = tmp_path / "out.jsonl"
    model = ("--model", make_model("llama", "python"), "--dtype", "float32", "--block-size", 16)
    command = ("generate", tmp_path / "rows.jsonl", "-o", output, *model, "--max-tokens", 6)
    assert pagedrun(*command)[0] == 0
    written = {
        row["index"]: [tuple(each["token_ids"]) for each in row["outputs"]]
        for row in read_jsonl(output)
    }
    prompts = [row["prompt"] for row in rows]
    params = [
        SamplingParams(max_tokens=6, temperature=row["temperature"], n=row["n"]) for row in rows
    ]
    whole = llm.generate(prompts, params)
    assert [each.request.index for each in whole] == list(range(23))
    assert {each.request.index: token_ids(each) for each in whole} == written
    completions = list(llm.as_completed(iter(prompts), iter(params), window=WindowSize(rows=5)))
    assert {each.request.index: token_ids(each) for each in completions} == written
    assert len(completions) == 23


@pytest.mark.invariant("same bytes whatever runs beside a row")
def test_memory_is_flat_and_reading_stays_close(llm: LLM) -> None:
    size, most_running = 64, 32
    prompts = Numbered()
    completions = llm.as_completed(prompts, ONE, window=WindowSize(rows=size))
    seen: set[int] = set()
    with (
        count_alive(Request, fact=lambda request: request.index) as requests,
        count_alive(Completion) as answers,
    ):
        for count, completion in enumerate(itertools.islice(completions, 2000), start=1):
            seen.add(completion.request.index)
            assert prompts.num_read - count <= 2 * size + 1 + most_running
            if count % 500 == 0:
                assert 0 < len(requests) + len(answers) <= 4 * size
                assert min(requests.facts()) >= completion.request.index - 2 * size
    assert len(seen) == 2000
    assert prompts.threads == {"MainThread", "planner"}
    completions.close()


def test_nothing_is_read_before_the_first_completion_is_asked_for(llm: LLM) -> None:
    prompts = Numbered()
    completions = llm.as_completed(prompts, ONE, window=SMALL)
    assert prompts.num_read == 0
    llm.generate("another call is free to run")
    next(completions)
    assert prompts.num_read > 0


def test_a_window_ends_by_its_bytes_too(llm: LLM) -> None:
    read: list[int] = []

    def prompts() -> Iterator[PromptInput]:
        for number in itertools.count():
            read.append(number)
            yield "x" * 100

    completions = llm.as_completed(prompts(), ONE, window=WindowSize(rows=300, num_bytes=1000))
    next(completions)
    assert len(read) <= 2 * 12 + 1
    completions.close()


@pytest.mark.parametrize("way", ["close", "drop", "break", "raise"])
def test_leaving_early_ends_the_planner_and_gives_the_pool_back(
    llm: LLM, clean: Clean, planners: Planners, way: str
) -> None:
    prompts = Numbered()
    if way in ("close", "drop"):
        completions = llm.as_completed(prompts, SHORT, window=SMALL)
        next(completions)
        assert planners() == ["planner"]
        if way == "close":
            completions.close()
            assert next(completions, None) is None
        del completions
    elif way == "break":
        for _ in llm.as_completed(prompts, SHORT, window=SMALL):
            break
    else:

        def fail() -> None:
            for _ in llm.as_completed(prompts, SHORT, window=SMALL):
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
    assert 0 < llm.report["tokens"]["generated"] < 3 * prompts.num_read
    num_read = prompts.num_read
    clean.check()
    assert prompts.num_read == num_read


@pytest.mark.parametrize("fails_at", [0, 3, 40])
def test_an_error_of_the_prompts_comes_out_as_it_is(llm: LLM, clean: Clean, fails_at: int) -> None:
    """In the first window, which the caller's thread reads, and in one that the planner reads."""
    prompts = Numbered(fails_at)
    completions = llm.as_completed(prompts, SHORT, window=SMALL)
    with pytest.raises(OSError, match="gone") as caught:
        list(completions)
    assert caught.value is prompts.error
    assert prompts.threads == ({"MainThread", "planner"} if fails_at == 40 else {"MainThread"})
    del caught, completions
    prompts.error.__traceback__ = None  # whose frames hold the run
    clean.check()


def test_another_call_is_refused_until_an_iteration_has_ended(llm: LLM) -> None:
    completions = llm.as_completed(["a", "b", "c"], SHORT)
    next(completions)
    with pytest.raises(PagedrunError, match="answering another call"):
        llm.generate("d", SHORT)
    with pytest.raises(PagedrunError, match="answering another call"):
        next(llm.as_completed("d", SHORT))
    assert len(list(completions)) == 2  # the first one goes on
    assert llm.generate("d", SHORT)[0].error is None


def test_prompts_that_cannot_be_asked_come_as_they_are_read(llm: LLM) -> None:
    """Without end: they are not kept until a good one comes."""
    bad = itertools.repeat({"promt": "x"})
    completions: Iterator[Completion] = llm.as_completed(bad, ONE, window=SMALL)  # type: ignore[arg-type]
    found = list(itertools.islice(completions, 100))
    assert [each.request.index for each in found] == list(range(100))
    assert {each.error.code for each in found if each.error is not None} == {"invalid_param"}


@pytest.mark.parametrize(
    ("num_params", "says"),
    [(0, "more than 0 prompts but 0"), (6, "more than 6 prompts but 6"), (8, "7 prompts but more")],
)
@pytest.mark.parametrize("window", [SMALL, WindowSize()])
def test_there_are_as_many_params_as_prompts(
    llm: LLM, num_params: int, says: str, window: WindowSize
) -> None:
    prompts, params = ["x"] * 7, [ONE] * num_params
    with pytest.raises(PagedrunError, match=says):
        list(llm.as_completed(prompts, iter(params), window=window))
    with pytest.raises(PagedrunError, match=says):
        llm.generate(prompts, params)


def test_params_that_are_none_are_refused(llm: LLM) -> None:
    with pytest.raises(PagedrunError, match="must be SamplingParams, not dict"):
        llm.generate(["x"], [{"max_tokens": 1}])  # type: ignore[list-item]


def test_the_report_is_there_when_an_iteration_has_ended(llm: LLM) -> None:
    llm.generate(["one", "two"], SHORT)
    assert llm.report["tokens"]["generated"] == 6
    completions = llm.as_completed(["x"] * 5, SHORT, window=SMALL)
    next(completions)
    assert llm.report["tokens"]["generated"] == 6
    assert len(list(completions)) == 4
    assert llm.report["tokens"]["generated"] == 15
    assert llm.report["finish_reasons"] == {"length": 5}
    assert llm.generate(iter([])) == []
    assert llm.report["tokens"]["generated"] == 0
