"""Vectors and scores of tiny random models against Transformers, in float32."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from pagedrun.paged.execution.pooling.flat_pass import FlatPass
from pagedrun.paged.execution.pooling.pairs import pair_texts
from pagedrun.paged.values.pooling import Pooling, PoolingParams, Task
from tests.support.pooled_engines import pooled_model, requests, results
from tests.support.tiny_encoders import FAMILIES, WORDS, texts, write_model

LENGTHS = [1, 2, 17, 33, 64, 150]
MOST = 1e-5


def _hidden(folder: Path, given: list[str]) -> list[torch.Tensor]:
    model, tokenizer = (
        AutoModel.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    with torch.no_grad():
        return [
            model(torch.tensor([tokenizer(each)["input_ids"]])).last_hidden_state[0]
            for each in given
        ]


def _pooled(pooling: Pooling, hidden: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(1, len(hidden) + 1)[:, None]
    by_pooling: dict[Pooling, torch.Tensor] = {
        Pooling.CLS: hidden[0],
        Pooling.LAST: hidden[-1],
        Pooling.MEAN: hidden.mean(0),
        Pooling.MAX: hidden.amax(0),
        Pooling.WEIGHTED_MEAN: (hidden * weights).sum(0) / weights.sum(),
        Pooling.MEAN_SQRT_LEN: hidden.sum(0) / len(hidden) ** 0.5,
    }
    return by_pooling[pooling]


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    write_model(tmp_path, family)
    given = texts(LENGTHS)
    hidden = _hidden(tmp_path, given)
    for pooling in (Pooling.MEAN, Pooling.CLS, Pooling.LAST):
        model = pooled_model(tmp_path, pooling=pooling)
        found = results(model.load_engine(), requests(model, given))
        for index, states in enumerate(hidden):
            expected = _pooled(pooling, states).numpy()
            assert np.abs(found[index] - expected).max() <= MOST
            cosine = np.dot(found[index], expected) / (
                np.linalg.norm(found[index]) * np.linalg.norm(expected)
            )
            assert cosine >= 0.999999


@pytest.mark.parametrize("pooling", Pooling)
def test_poolings_are_their_formulas(pooling: Pooling, tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    given = texts(LENGTHS)
    model = pooled_model(tmp_path, pooling=pooling, normalize=True, dimensions=32)
    found = results(model.load_engine(), requests(model, given))
    for index, states in enumerate(_hidden(tmp_path, given)):
        cut = _pooled(pooling, states)[:32]
        expected = (cut / cut.norm()).numpy()
        assert np.abs(found[index] - expected).max() <= MOST


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("bert", {}),
        ("xlm-roberta", {"pad_token_id": 0}),
        ("distilbert", {}),
        ("modernbert", {"classifier_pooling": "mean"}),
        ("mpnet", {}),
        ("deberta-v2", {}),
        pytest.param("deberta-v2", {"pooler_hidden_act": "tanh"}, marks=pytest.mark.long),
        ("electra", {}),
        ("albert", {}),
        ("nomic_bert", {}),
        ("jina_embeddings_v3", {}),
        ("gte", {}),
        ("qwen3", {}),
    ],
)
def test_labels_are_those_of_transformers(
    family: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    write_model(tmp_path, family, "ForSequenceClassification", num_labels=3, **fields)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokenizer, given = AutoTokenizer.from_pretrained(tmp_path), texts(LENGTHS)
    model = pooled_model(tmp_path, Task.CLASSIFY)
    found = results(model.load_engine(), requests(model, given))
    for index, text in enumerate(given):
        with torch.no_grad():
            logits = theirs(torch.tensor([tokenizer(text)["input_ids"]])).logits[0]
        assert np.abs(found[index] - torch.softmax(logits, 0).numpy()).max() <= MOST


@pytest.mark.parametrize(
    "family", ["bert", *(pytest.param(e, marks=pytest.mark.long) for e in ("electra", "albert"))]
)
def test_pairs_have_two_token_types(family: str, tmp_path: Path) -> None:
    # Weights so large that the type of a single token shows.
    kind = "ForSequenceClassification"
    write_model(tmp_path, family, kind, num_labels=1, initializer_range=0.1)
    path = tmp_path / "tokenizer_config.json"
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    path.write_text(json.dumps({**json.loads(path.read_text()), **names}))
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokenizer, given = AutoTokenizer.from_pretrained(tmp_path), texts(LENGTHS)
    pairs = list(zip(given, reversed(given), strict=True))
    model = pooled_model(tmp_path, Task.RERANK)
    found = results(model.load_engine(), requests(model, pairs))
    for index, (first, second) in enumerate(pairs):
        encoded = tokenizer(first, second, return_tensors="pt")
        assert encoded["token_type_ids"].max() == 1
        with torch.no_grad():
            score = torch.sigmoid(theirs(**encoded).logits[0, 0]).item()
        assert abs(found[index][0] - score) <= MOST


def test_pairs_have_the_special_tokens_of_their_tokenizer(tmp_path: Path) -> None:
    """MPNet's pairs have two separators between the texts, and one token type."""
    write_model(tmp_path, "mpnet", "ForSequenceClassification", num_labels=3)
    path = tmp_path / "tokenizer.json"
    tokens = json.loads(path.read_text())
    tokens["post_processor"] = {
        "type": "RobertaProcessing",
        "sep": ["[SEP]", 3],
        "cls": ["[CLS]", 2],
        "trim_offsets": True,
        "add_prefix_space": False,
    }
    path.write_text(json.dumps(tokens))
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    given = texts(LENGTHS)
    pairs = list(zip(given, reversed(given), strict=True))
    model = pooled_model(tmp_path, Task.CLASSIFY)
    found = results(model.load_engine(), requests(model, pairs))
    for index, pair in enumerate(pairs):
        first, second = ([WORDS.index(word) for word in each.split()] for each in pair)
        ids = torch.tensor([[2, *first, 3, 3, *second, 3]])
        with torch.no_grad():
            logits = theirs(ids).logits[0]
        assert np.abs(found[index] - torch.softmax(logits, 0).numpy()).max() <= MOST


def test_the_score_of_a_causal_reranker_is_the_chance_of_yes_instead_of_no(tmp_path: Path) -> None:
    known: dict[str, Any] = {"tie_word_embeddings": True, "is_original_qwen3_reranker": True}
    write_model(tmp_path, "qwen3", "ForCausalLM", initializer_range=0.2, **known)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    query, *documents = texts([4, 3, 20])
    model = pooled_model(tmp_path, Task.RERANK)
    pairs = pair_texts(query, documents, model.spec, PoolingParams(task=Task.RERANK))
    asked = requests(model, pairs)
    found = results(model.load_engine(), asked)
    for index, request in enumerate(asked):
        with torch.no_grad():
            logits = theirs(torch.tensor([request.texts[0].token_ids])).logits[0, -1]
        answers = logits[[WORDS.index("no"), WORDS.index("yes")]]
        assert abs(answers[0] - answers[1]) > 0.1
        assert abs(found[index][0] - torch.softmax(answers, 0)[1].item()) <= MOST


def test_a_causal_model_has_vectors_of_texts_of_all_its_positions(tmp_path: Path) -> None:
    write_model(tmp_path, "qwen3")
    given = texts([300, 299])
    model = pooled_model(tmp_path)
    found = results(model.load_engine(), requests(model, given))
    for index, states in enumerate(_hidden(tmp_path, given)):
        assert np.abs(found[index] - states[-1].numpy()).max() <= MOST


def test_texts_that_share_prefixes_have_the_vectors_of_texts_side_by_side(tmp_path: Path) -> None:
    write_model(tmp_path, "qwen3")
    common = texts([200], seed=3)[0]
    given = [f"{common} {each}" for each in texts([3, 9, 20, 50])]
    model = pooled_model(tmp_path)
    engine = model.load_engine()
    asked = requests(model, given)
    shared = engine.start(asked)
    found = {each.request.index: each.pooled for each in shared}
    figures = shared.report()["pooling"]
    assert figures["shared_prefix_tokens"] >= 3 * 192
    flat = FlatPass(engine.loaded, engine.pooler, engine.config.block_size)
    for request, expected in zip(asked, flat([each.texts[0] for each in asked]), strict=True):
        ours = found[request.index]
        assert ours is not None
        assert np.array_equal(ours[0], expected)
