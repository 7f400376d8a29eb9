"""Folders of sentence-transformers: modules, lengths and prompts."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pagedrun.paged.values.errors import ModelError, UsageError
from tests.support.pooled_engines import pooled_model, requests, results
from tests.support.tiny_encoders import texts, write_model, write_modules

LENGTHS = [1, 5, 40, 90]
MOST = 1e-5


def write_dense(folder: Path, in_features: int, out_features: int) -> tuple[torch.Tensor, ...]:
    """Write the module Dense of a folder; return weight and bias."""
    torch.manual_seed(1)
    weight, bias = torch.randn(out_features, in_features) / 8, torch.randn(out_features)
    folder.mkdir()
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "model.safetensors")
    config = {
        "in_features": in_features,
        "out_features": out_features,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return weight, bias


def test_poolings_side_by_side_then_dense_then_normalize(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    write_modules(tmp_path, pooling, "Dense", "Normalize")
    weight, bias = write_dense(tmp_path / "2_Dense", 128, 24)
    given = texts(LENGTHS)
    plain = []
    for name in ("cls", "mean"):
        model = pooled_model(tmp_path, pooling=name)
        steps = model.spec.pooler.steps
        assert len(steps) == 1
        (tmp_path / "modules.json").rename(tmp_path / "kept.json")
        model = pooled_model(tmp_path, pooling=name)
        plain.append(results(model.load_engine(), requests(model, given)))
        (tmp_path / "kept.json").rename(tmp_path / "modules.json")
    model = pooled_model(tmp_path)
    engine = model.load_engine()
    assert engine.pooler.size == 24
    found = results(engine, requests(model, given))
    for index in range(len(given)):
        joined = torch.from_numpy(np.concatenate([each[index] for each in plain]))
        out = torch.tanh(weight @ joined + bias)
        assert np.abs(found[index] - (out / out.norm()).numpy()).max() <= MOST


def test_max_seq_length_and_lower_case_are_those_of_the_folder(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    write_modules(tmp_path, {"pooling_mode": "mean"})
    settings = {"max_seq_length": 20, "do_lower_case": True}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(settings))
    model = pooled_model(tmp_path)
    assert model.spec.max_length == 20
    upper, lower = requests(model, ["W1 W2", "w1 w2"])
    assert upper.texts == lower.texts


@pytest.mark.parametrize(
    ("version", "lowers"),
    [("2.7.0", True), ("3.4.1", True), ("5.3.0", True), ("5.4.0", False), ("6.2.0", False)],
)
def test_special_tokens_are_lowered_by_versions_before_5_4_alone(
    version: str, lowers: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    write_model(folder, "bert")
    write_modules(folder, {"pooling_mode": "mean"})
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    written = {"__version__": {"sentence_transformers": version}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(written))
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"].append(
        {"id": 3, "content": "[SEP]", "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    )
    path.write_text(json.dumps(tokenizer))
    [request] = requests(pooled_model(folder), ["W1 [SEP] W2"])
    separator = [1, 1, 1] if lowers else [3]  # of "[", "sep" and "]", which are no words
    assert list(request.texts[0].token_ids) == [2, 7, *separator, 8, 3]
    [prompted] = requests(pooled_model(folder, prompt="W1 "), ["[SEP] W2"])
    assert prompted.texts[0].token_ids == request.texts[0].token_ids


def test_a_pooling_that_is_not_known_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    write_modules(tmp_path, {"pooling_mode": "sum"})
    with pytest.raises(ModelError, match="pooling_mode"):
        pooled_model(tmp_path)


def test_a_layer_of_another_size_is_refused_while_loading(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    write_modules(tmp_path, {"pooling_mode": ["cls", "mean"]}, "Dense")
    write_dense(tmp_path / "2_Dense", 64, 24)
    with pytest.raises(ModelError, match="takes 64 numbers, and vectors have 128"):
        pooled_model(tmp_path).load_engine()


def test_a_module_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    write_modules(tmp_path, {"pooling_mode": "mean"})
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[1]["path"] = "../other"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match="a folder inside the model's"):
        pooled_model(tmp_path)


def write_router(folder: Path, place: str, structure: object, **parameters: object) -> None:
    """Write a Router, and list it in modules.json behind Transformer and Pooling, or alone."""
    package = "sentence_transformers.base.modules"
    kinds = ("Transformer", "Normalize", "StaticEmbedding")
    config = {
        "types": {f"a_0_{kind}": f"{package}.{kind.lower()}.{kind}" for kind in kinds},
        "structure": structure,
        "parameters": parameters,
    }
    (folder / place).mkdir(exist_ok=True)
    (folder / place / "router_config.json").write_text(json.dumps(config))
    modules = json.loads((folder / "modules.json").read_text())[: 2 if place else 0]
    modules.append({"path": place, "type": f"{package}.router.Router"})
    (folder / "modules.json").write_text(json.dumps(modules))


def test_a_router_without_a_default_route_needs_a_name(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    write_modules(tmp_path, {"pooling_mode": "mean"})
    routes = {"query": ["a_0_Normalize"], "other": []}
    mappings = {"('topic', None)": "other", "(None, ('image', 'text'))": "query"}
    write_router(tmp_path, "2_Router", routes, allow_empty_key=False, route_mappings=mappings)
    for prompt in (None, "w1 "):
        with pytest.raises(UsageError, match=r"prompt_name chooses one of query, other, topic"):
            pooled_model(tmp_path, prompt=prompt)
    for name, normalizes in (("query", True), ("other", False), ("topic", False)):
        spec = pooled_model(tmp_path, prompt_name=name, prompt="w1 ").spec
        assert (spec.pooler.normalizes, spec.prompt) == (normalizes, "w1 ")
        assert pooled_model(tmp_path, prompt_name=name).spec.prompt == ""
    with pytest.raises(UsageError, match="no default route"):
        pooled_model(tmp_path, prompt_name="none")


def test_routes_that_are_not_supported_are_refused_by_name(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    write_modules(tmp_path, {"pooling_mode": "mean"})
    routes = {"query": ["a_0_StaticEmbedding"], "document": ["a_0_Normalize"]}
    write_router(tmp_path, "2_Router", routes, default_route="document")
    assert pooled_model(tmp_path).spec.pooler.normalizes  # the other route is not asked for
    with pytest.raises(ModelError, match="a module StaticEmbedding at place 2"):
        pooled_model(tmp_path, prompt_name="query")
    for key in ("query", "('a', 1)", "(['a'], None)", "__import__('os')", "(" * 900):
        write_router(tmp_path, "2_Router", routes, route_mappings={key: "query"})
        with pytest.raises(ModelError, match="under a task and a modality"):
            pooled_model(tmp_path)
    write_router(tmp_path, "2_Router", {"query": ["../a"]})
    with pytest.raises(ModelError, match="a list of names in types"):
        pooled_model(tmp_path)
    write_router(tmp_path, "", {"query": ["a_0_StaticEmbedding"], "document": ["a_0_Transformer"]})
    with pytest.raises(ModelError, match=r"query \(StaticEmbedding\), document \(Transformer\)"):
        pooled_model(tmp_path)


@pytest.mark.parametrize("mode", ["cls", "max", "mean", "weightedmean", "lasttoken"])
def test_vectors_are_those_of_sentence_transformers(mode: str, tmp_path: Path) -> None:
    library = import_module("sentence_transformers")  # here: it takes long
    modules = import_module("sentence_transformers.sentence_transformer.modules")
    write_model(tmp_path / "model", "bert")
    transformer = modules.Transformer(str(tmp_path / "model"))
    pooling = modules.Pooling(64, pooling_mode=mode)
    dense = modules.Dense(64, 32)
    theirs = library.SentenceTransformer(
        modules=[transformer, pooling, dense, modules.Normalize()], device="cpu"
    )
    theirs.save(str(tmp_path / "saved"))
    given = texts(LENGTHS)
    model = pooled_model(tmp_path / "saved")
    found = results(model.load_engine(), requests(model, given))
    for index, expected in enumerate(theirs.encode(given)):
        assert np.abs(found[index] - expected).max() <= MOST
        assert np.dot(found[index], expected) >= 0.999999
