"""The vector of a text has the same bytes alone, in any batch, and with any number of threads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pagedrun.paged.execution.pooling.pooling_engine import PoolingEngine
from pagedrun.paged.execution.pooling.text_windows import DistinctText, RecentResults
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.pooling import PooledText
from pagedrun.paged.values.request import Request
from tests.support.every_pair import every_pair
from tests.support.kernel_cases import THREADS, threads
from tests.support.pooled_engines import pooled_model, requests, results
from tests.support.tiny_encoders import texts, write_model

LENGTHS = [1, 3, 40, 7, 90, 5, 5, 130, 2, 60, 11, 11]


@pytest.mark.parametrize(
    "family",
    [
        *("bert", "modernbert", "qwen3", "mpnet", "deberta-v2", "albert"),
        pytest.param("nomic_bert", marks=pytest.mark.long),
    ],
)
def test_batches_and_threads(family: str, tmp_path: Path) -> None:
    write_model(tmp_path, family)
    model = pooled_model(tmp_path)
    engine = model.load_engine()
    asked = requests(model, texts(LENGTHS))
    expected = results(engine, asked)
    for each in asked:
        assert np.array_equal(results(engine, [each])[each.index], expected[each.index])
    for num_tokens, number in zip((1, 64, 200, 4096), [*THREADS, *THREADS], strict=True):
        config = replace(engine.config, max_num_batched_tokens=num_tokens)
        other = PoolingEngine(config, engine.loaded, engine.spec, engine.pooler)
        with threads(number):
            found = results(other, asked)
        assert all(np.array_equal(found[i], expected[i]) for i in expected), num_tokens


def test_equal_texts_are_computed_once(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    model = pooled_model(tmp_path)
    given = texts([20, 30])
    run = model.load_engine().start(requests(model, [given[0], given[1], given[0]]))
    found = {each.request.index: each.pooled for each in run}
    assert found[0] is not None
    assert found[2] is not None
    assert np.array_equal(found[0], found[2])
    figures = run.report()["pooling"]
    assert (figures["texts"], figures["distinct_texts"]) == (3, 2)
    assert run.report()["tokens"]["computed"] == 22 + 32


def test_windows_follow_each_other_and_done_rows_are_left_out(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    model = pooled_model(tmp_path)
    engine = model.load_engine()
    asked = requests(model, texts(LENGTHS))
    windows: list[list[Request]] = [asked[4:8], asked[8:]]
    run = engine.start(asked[:4], more=windows, done={1, 9})
    assert [each.request.index for each in run] == [0, 2, 3, 4, 5, 6, 7, 8, 10, 11]


def test_a_text_of_an_earlier_window_is_not_computed_again(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    model = pooled_model(tmp_path)
    engine = model.load_engine()
    one, other, third = texts([20, 30, 9])
    asked = requests(model, [one, other, third, one, third, one])
    expected = results(engine, asked)
    run = engine.start(asked[:2], more=[asked[2:4], asked[4:]])
    found = {each.request.index: each.pooled for each in run}
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    for index, pooled in found.items():
        assert pooled is not None
        assert np.array_equal(pooled[0], expected[index])
    figures = run.report()["pooling"]
    assert (figures["texts"], figures["distinct_texts"]) == (6, 3)
    assert run.report()["tokens"]["computed"] == 22 + 32 + 11


def distinct(token: int) -> DistinctText:
    return DistinctText(PooledText((1, token), 2, 0))


def test_recent_results_that_were_used_stay() -> None:
    recent = RecentResults(3 * (8 * 4 + 256))
    for token in range(3):
        each = distinct(token)
        each.finish(np.full(8, token, np.float32))
        recent.keep([each])
    again = distinct(0)
    assert recent.find([again, distinct(9)]) == [again]
    assert again.result is not None
    assert again.result.tolist() == [0.0] * 8
    failed, new = distinct(4), distinct(3)
    failed.fail(RowError("out_of_memory", "too large"))
    new.finish(np.full(8, 3, np.float32))
    recent.keep([failed, new])
    left = [distinct(token) for token in range(5)]
    assert recent.find(left) == [left[0], left[2], left[3]]
    of_pair = DistinctText(PooledText((1, 0), 1, 0))
    assert recent.find([of_pair]) == []


@every_pair(
    in_turn="settings",
    family=["bert", "deberta-v2", "albert"],
    settings=[{"quantization": "int8"}, {"dtype": "bfloat16"}],
)
def test_narrower_numbers_are_near_and_have_the_same_bytes(
    family: str, settings: dict[str, str], tmp_path: Path
) -> None:
    write_model(tmp_path, family)
    given = texts(LENGTHS)
    model = pooled_model(tmp_path)
    exact = results(model.load_engine(), requests(model, given))
    narrow = pooled_model(tmp_path, engine=settings)
    engine, asked = narrow.load_engine(), requests(narrow, given)
    found = results(engine, asked)
    for each in asked:
        assert np.array_equal(results(engine, [each])[each.index], found[each.index])
        ours, theirs = found[each.index], exact[each.index]
        lengths = np.linalg.norm(ours) * np.linalg.norm(theirs)
        assert np.dot(ours, theirs) / lengths > 0.99
        assert not np.array_equal(ours, theirs)
