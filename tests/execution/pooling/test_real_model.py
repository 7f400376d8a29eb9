"""The order of a search, and int8, with the weights of all-MiniLM-L6-v2 on real paragraphs."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from pagedrun.paged.text.prompt import Overlong
from tests.execution.pooling.real_model import extracted_model, paragraphs
from tests.support.pooled_engines import pooled_model, requests, results

QUERIES = [
    "How do I continue a run that was killed?",
    "Which quantized formats are supported?",
    "How much memory do the keys and values take?",
    "Can several machines work on one file?",
    "What does the exit status mean?",
    "Is the output the same on every run?",
    "How are answers restricted to a JSON schema?",
    "Reading weights from disk because the model is too large",
]
CLOSE = 1e-5  # scores that may change places


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extracted_model(tmp_path_factory.mktemp("real"))


def vectors(folder: Path, given: list[str], **engine: Any) -> NDArray[np.float32]:
    model = pooled_model(folder, engine=engine or None)
    asked = requests(model, given, Overlong.TRUNCATE_RIGHT)
    found = results(model.load_engine(), asked)
    return np.stack([found[index] for index in range(len(given))])


def expected_vectors(folder: Path, given: list[str]) -> NDArray[np.float32]:
    """Return vectors by Transformers alone: normalized means of the hidden states of batches."""
    model, tokenizer = (
        AutoModel.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    found = []
    for start in range(0, len(given), 32):
        batch = tokenizer(
            given[start : start + 32],
            padding=True,
            truncation=True,
            max_length=256,
            return_tensors="pt",
        )
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][:, :, None].float()
        mean = (hidden * mask).sum(1) / mask.sum(1)
        found.append(torch.nn.functional.normalize(mean, dim=1))
    return torch.cat(found).numpy()


def test_a_search_finds_the_same_paragraphs_in_the_same_order(model: Path) -> None:
    corpus = paragraphs(300)
    ours, theirs = vectors(model, corpus), expected_vectors(model, corpus)
    assert np.abs(ours - theirs).max() <= CLOSE
    assert (ours * theirs).sum(axis=1).min() >= 0.999999
    scores = vectors(model, QUERIES) @ ours.T
    expected = expected_vectors(model, QUERIES) @ theirs.T
    for found, wanted in zip(scores, expected, strict=True):
        order = np.argsort(-found, kind="stable")
        assert order[:10].tolist() == np.argsort(-wanted, kind="stable")[:10].tolist()
        assert (np.diff(wanted[order]) <= CLOSE).all()


@pytest.mark.long
def test_a_folder_that_the_library_saves_again_has_the_same_vectors(
    model: Path, tmp_path: Path
) -> None:
    library = import_module("sentence_transformers")  # here: it takes long
    library.SentenceTransformer(str(model), device="cpu").save(str(tmp_path / "again"))
    theirs = library.SentenceTransformer(str(tmp_path / "again"), device="cpu")
    short = paragraphs(60)
    corpus = [*short[:20], *(" ".join(short[start : start + 12]) for start in (0, 20, 40))]
    expected = theirs.encode(corpus)
    for folder in (model, tmp_path / "again"):
        assert np.abs(vectors(folder, corpus) - expected).max() <= CLOSE


def test_int8_is_near_float32(model: Path) -> None:
    corpus = [*paragraphs(120), *QUERIES]
    exact, narrow = vectors(model, corpus), vectors(model, corpus, quantization="int8")
    assert not np.array_equal(exact, narrow)
    assert (exact * narrow).sum(axis=1).min() >= 0.995
