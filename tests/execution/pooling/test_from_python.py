"""`LLM.embed`, `rerank` and `classify`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedrun import LLM, RowError, UsageError
from pagedrun.paged.execution.pooling.pooling_engine import PoolingEngine
from tests.support.tiny_encoders import texts, write_model

LENGTHS = [3, 20, 9]


def test_vectors_of_texts(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    given = texts(LENGTHS)
    with LLM(tmp_path, runner="pooling", dtype="float32") as llm:
        plain = llm.embed(given)
        assert plain.shape == (3, 64)
        assert plain.dtype == np.float32
        assert np.array_equal(llm.embed(given[1:2])[0], plain[1])
        scaled = llm.embed(given, normalize=True, pooling="cls", dimensions=16)
        assert np.allclose(np.linalg.norm(scaled, axis=1), 1)
        assert scaled.shape == (3, 16)
        assert llm.embed([]).shape == (0, 64)
        assert llm.report["pooling"]["texts"] == 0
        with pytest.raises(RowError, match="text 1: the text has 402 tokens"):
            llm.embed([given[0], "w1 " * 400])
        assert llm.embed(["w1 " * 400], on_overlong="truncate-right").shape == (1, 64)
        with pytest.raises(UsageError, match="pooling must be one of cls, last"):
            llm.embed(given, pooling="first")
        with pytest.raises(UsageError, match="texts must be a list of texts"):
            llm.embed("a text")
        with pytest.raises(UsageError, match="leave it out for answers"):
            llm.generate(["a text"])


def test_a_pooler_is_read_once_for_equal_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "qwen3")
    given, opened = texts(LENGTHS), []
    load = PoolingEngine.load

    def counted(*arguments: Any) -> PoolingEngine:
        opened.append(1)
        return load(*arguments)

    monkeypatch.setattr(PoolingEngine, "load", counted)
    with LLM(tmp_path, runner="pooling", dtype="float32") as llm:
        first = llm.embed(given)
        assert np.array_equal(llm.embed(given), first)
        assert np.array_equal(llm.embed([*given, "w9"])[:3], first)
        assert len(opened) == 1
        llm.embed(given, pooling="mean")
        assert len(opened) == 2


def test_documents_and_labels(tmp_path: Path) -> None:
    write_model(tmp_path / "one", "bert", "ForSequenceClassification", num_labels=1)
    query, *documents = texts([4, *LENGTHS])
    with LLM(tmp_path / "one", runner="pooling", dtype="float32") as llm:
        best = llm.rerank(query, documents)
        assert sorted(each.index for each in best) == [0, 1, 2]
        assert [each.score for each in best] == sorted((e.score for e in best), reverse=True)
        assert llm.rerank(query, documents, top_n=1) == best[:1]
    write_model(tmp_path / "three", "bert", "ForSequenceClassification", num_labels=3)
    with LLM(tmp_path / "three", runner="pooling", dtype="float32") as llm:
        (first, *_) = llm.classify(documents)
        assert sum(first.scores.values()) == pytest.approx(1, abs=1e-6)
        assert first.scores[first.label] == max(first.scores.values())


def test_a_vector_with_a_number_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    """Also where the others of it are: a weight of the last norm is near the largest float."""
    model = write_model(tmp_path, "bert")
    model.encoder.layer[-1].output.LayerNorm.weight.data[5] = 3.4e38
    model.encoder.layer[-1].output.LayerNorm.bias.data[5] = 3.4e38
    model.save_pretrained(tmp_path)
    with LLM(tmp_path, runner="pooling", dtype="float32") as llm:
        for text in texts([9, 20], seed=1):
            with pytest.raises(RowError, match="contains NaN or infinity") as found:
                llm.embed([text], pooling="mean", normalize=False)
            assert found.value.code == "nan_vector"


def test_answers_need_another_runner(tmp_path: Path) -> None:
    write_model(tmp_path, "qwen3", "ForCausalLM", is_original_qwen3_reranker=True)
    with LLM(tmp_path, dtype="float32") as llm, pytest.raises(UsageError, match="runner must be"):
        llm.embed(["a text"])
    with pytest.raises(UsageError, match="runner must be generate or pooling"):
        LLM(tmp_path, runner="draft")
