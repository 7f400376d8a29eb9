"""Variants of relative positions against Transformers, in float32: terms, buckets, long texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from pagedrun.paged.models.checkpoint.tensors import Parameter, Role
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.modules.relative import Disentangled, DistanceBias, DistanceVectors
from pagedrun.paged.values.pooling import Pooling
from tests.support.pooled_engines import pooled_model, requests, results
from tests.support.tiny_encoders import texts, write_model

MOST = 1e-5


def distances(columns: list[int], num_positions: int) -> torch.Tensor:
    """Return the column of each query and key, [num_positions, num_positions]."""
    positions = torch.arange(num_positions)
    return torch.tensor(columns)[num_positions - 1 + positions[:, None] - positions[None, :]]


@pytest.mark.parametrize(
    ("num_positions", "num_buckets", "most"),
    # Those of DeBERTa-v3; without buckets; texts longer than the largest distance.
    [(512, 256, 512), (512, None, 512), (300, 8, 300), (300, 64, 128), (150, None, 100)],
)
def test_buckets_are_those_of_deberta(
    num_positions: int, num_buckets: int | None, most: int
) -> None:
    span = num_buckets or most
    embeddings = Parameter("e", (2 * span, 4), Role.MATRIX)
    vectors = DistanceVectors(embeddings, None)
    ours = Disentangled(vectors, None, None, num_buckets, most).columns(num_positions)
    x = torch.zeros(1, num_positions, 4)
    theirs = build_relative_position(x, x, num_buckets or -1, most)[0]
    expected = torch.clamp(theirs + span, 0, 2 * span - 1)
    assert torch.equal(distances(ours, num_positions), expected)


def test_buckets_are_those_of_mpnet() -> None:
    ours = DistanceBias(Parameter("e", (32, 4), Role.MATRIX)).columns(600)
    positions = torch.arange(600)
    theirs = MPNetEncoder.relative_position_bucket(positions[None, :] - positions[:, None])
    assert torch.equal(distances(ours, 600), theirs)


VARIANTS: dict[str, dict[str, Any]] = {
    "own projections": {"share_att_key": False},
    "content to position": {"pos_att_type": ["c2p"]},
    "position to content": {"pos_att_type": ["p2c"], "share_att_key": False},
    # Terms that are 0 are part of the scale.
    "no relative attention": {"relative_attention": False, "position_biased_input": True},
    "no buckets": {"position_buckets": -1, "max_relative_positions": 20, "norm_rel_ebd": "none"},
    "token types": {"type_vocab_size": 2, "position_biased_input": True},
    "other activations": {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
}
LONG = ["content to position", "token types", "other activations"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(e, marks=[pytest.mark.long] if e in LONG else []) for e in VARIANTS],
)
def test_variants_of_deberta(name: str, tmp_path: Path) -> None:
    check(tmp_path, "deberta-v2", [1, 17, 150], **VARIANTS[name])


@pytest.mark.parametrize("family", ["deberta-v2", "mpnet"])
def test_texts_of_512_tokens(family: str, tmp_path: Path) -> None:
    fields = {"num_hidden_layers": 2}
    if family == "deberta-v2":
        fields |= {"position_buckets": 256, "max_position_embeddings": 512}
    else:
        fields |= {"max_position_embeddings": 514}  # of which two belong to no token
    check(tmp_path, family, [510, 3, 509], **fields)


@pytest.mark.invariant("planned bytes are taken bytes")
@pytest.mark.parametrize("family", ["deberta-v2", "electra", "albert"])
def test_weights_take_the_bytes_that_a_plan_says(family: str, tmp_path: Path) -> None:
    write_model(tmp_path, family)
    loaded = pooled_model(tmp_path).load_engine().loaded
    network = loaded.config.network
    assert isinstance(network, DecoderSpec)
    assert loaded.model.num_bytes == network.held_bytes(4, packs=True)


def test_streamed_weights_give_the_same_bytes(tmp_path: Path) -> None:
    write_model(tmp_path, "deberta-v2", num_hidden_layers=6)
    given = texts([1, 17, 150])
    model = pooled_model(tmp_path)
    engine = model.load_engine()
    expected = results(engine, requests(model, given))
    network = engine.loaded.config.network
    assert isinstance(network, DecoderSpec)
    pages = max(network.packed_sizes(4)) // 4096 + 1
    memory = {"weights_memory": 3 * 4096 * pages, "packed_dir": tmp_path / "packed"}
    streamed = pooled_model(tmp_path, engine=memory)
    other = streamed.load_engine()
    assert other.loaded.model.streamed is not None
    found = results(other, requests(streamed, given))
    assert all(np.array_equal(found[index], expected[index]) for index in expected)


def check(folder: Path, family: str, lengths: list[int], **fields: Any) -> None:
    write_model(folder, family, **fields)
    given = texts(lengths)
    model = pooled_model(folder, pooling=Pooling.MEAN)
    found = results(model.load_engine(), requests(model, given))
    theirs = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for index, text in enumerate(given):
        with torch.no_grad():
            states = theirs(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        assert np.abs(found[index] - states.mean(0).numpy()).max() <= MOST
