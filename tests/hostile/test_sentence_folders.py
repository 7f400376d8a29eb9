"""Folders of sentence-transformers that are broken or mean harm: input 33, requirements S2, S12."""

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pagedrun.paged.models.pooler_spec import PooledModelSpec
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.pooling import PoolingParams, Task
from tests.support.command import Command
from tests.support.pooled_engines import pooled_model
from tests.support.tiny_encoders import write_model, write_modules

Break = Callable[[Path], object]
LIST, OWN = "modules.json", "sentence_bert_config.json"
TOP, POOL = "config_sentence_transformers.json", "1_Pooling/config.json"
DENSE, TOKENS = "2_Dense/config.json", "tokenizer_config.json"
DEEP = "[" * 200_000 + "]" * 200_000
CODE = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Pooling: pass\n"


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with each kind of file."""
    folder = tmp_path_factory.mktemp("whole")
    write_model(folder, "bert")
    write_modules(folder, {"pooling_mode": "mean"}, "Dense", "Normalize")
    (folder / OWN).write_text(json.dumps({"max_seq_length": 20}))
    (folder / TOP).write_text(json.dumps({"prompts": {"query": "w1 "}}))
    (folder / "2_Dense").mkdir()
    sizes = {"in_features": 64, "out_features": 8, "bias": False}
    name = "torch.nn.modules.activation.Tanh"
    (folder / DENSE).write_text(json.dumps({**sizes, "activation_function": name}))
    save_file({"linear.weight": torch.ones(8, 64)}, folder / "2_Dense/model.safetensors")
    (folder / "evil.py").write_text(CODE)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def text(name: str, content: str) -> Break:
    return lambda folder: (folder / name).write_text(content)


def fields(name: str, **values: Any) -> Break:
    """Set fields of a file."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def module(number: int, **values: Any) -> Break:
    """Set fields of a module of the list."""

    def change(folder: Path) -> None:
        modules = json.loads((folder / LIST).read_text())
        modules[number].update(values)
        (folder / LIST).write_text(json.dumps(modules))

    return change


def modules(change: Callable[[list[Any]], object]) -> Break:
    def apply(folder: Path) -> None:
        listed = json.loads((folder / LIST).read_text())
        change(listed)
        (folder / LIST).write_text(json.dumps(listed))

    return apply


def without(name: str) -> Break:
    return lambda folder: (folder / name).unlink()


def linked(target: str) -> Break:
    """Make the folder of a module a link."""

    def change(folder: Path) -> None:
        shutil.rmtree(folder / "1_Pooling")
        (folder / "1_Pooling").symlink_to(target)

    return change


def moved_out(folder: Path) -> None:
    """Put a module beside the model, behind a link in it."""
    shutil.move(folder / "1_Pooling", folder.parent / "outside")
    (folder / "1_Pooling").symlink_to(folder.parent / "outside")


def piped(folder: Path) -> None:
    (folder / POOL).unlink()
    os.mkfifo(folder / POOL)


# What is broken, the file or module that the sentence names, and words of it.
BROKEN: dict[str, tuple[Break, str, str]] = {
    "a path out of the folder": (module(1, path="../outside"), "item 1: path", "inside"),
    "a path through another": (module(1, path="1_Pooling/../.."), "item 1: path", "inside"),
    "an absolute path": (module(1, path="/etc"), "item 1: path", "inside"),
    "a path of Windows": (module(1, path="..\\outside"), "item 1: path", "inside"),
    "a path with a zero": (module(1, path="1_Pooling\0"), "item 1: path", "inside"),
    "a path without end": (module(1, path="a/" * 50_000), "item 1: path", "inside"),
    "a name without end": (module(1, path="a" * 5_000), "item 1: path", "inside"),
    "a path that is a list": (module(1, path=["1_Pooling"]), "item 1: path", "a string"),
    "a link out of the folder": (moved_out, "item 1: path", "no link"),
    "a link to itself": (linked("1_Pooling"), "1_Pooling", "is missing"),
    "a link to the root": (linked("/"), "item 1: path", "no link"),
    "the model in itself": (linked("."), POOL, "not known"),
    "a folder that is missing": (module(1, path="9_Pooling"), "9_Pooling", "is missing"),
    "a pipe in place of a file": (piped, POOL.split("/")[0], "is not a file"),
    "no list": (text(LIST, "{}"), LIST, "a JSON list"),
    "an empty list": (text(LIST, "[]"), LIST, "lists 0 modules"),
    "a list of lists": (text(LIST, "[[]]"), LIST, "item 0 is not an object"),
    "a list that is cut": (text(LIST, '[{"type":'), LIST, "not valid JSON"),
    "bytes that are no text": (
        lambda folder: (folder / LIST).write_bytes(b"\xff\xfe\0"),
        LIST,
        "not valid JSON",
    ),
    "a list that is too deep": (text(LIST, DEEP), LIST, "too deeply nested"),
    "a list of 100 GB": (
        lambda folder: os.truncate(folder / LIST, 10**11),
        LIST,
        "larger than 1 MiB",
    ),
    "a million empty lists": (text(LIST, f"[{'[],' * 300_000}[]]"), LIST, "item 0"),
    "thousands of modules": (
        modules(lambda listed: listed.extend([dict(listed[-1]) for _ in range(5000)])),
        LIST,
        "lists 5004 modules",
    ),
    "a number of endless digits": (text(LIST, f"[{'9' * 10_000}]"), LIST, "not valid JSON"),
    "no type": (modules(lambda listed: listed[1].pop("type")), "item 1: type", "missing"),
    "a type that is a number": (module(1, type=7), "item 1: type", "a string"),
    "a type that is a function": (module(1, type="os.system"), "item 1: type", "no other code"),
    "a type in the folder": (module(1, type="evil.Pooling"), "item 1: type", "no other code"),
    "a type that looks known": (
        module(1, type="sentence_transformers_x.Pooling"),
        "item 1: type",
        "no other code",
    ),
    "a type of the library": (
        module(1, type="sentence_transformers.util.import_from_string"),
        LIST,
        "a module import_from_string at place 1 is not supported",
    ),
    "a type in red": (
        module(1, type="sentence_transformers.\x1b[31mred"),
        LIST,
        "a module of another name",
    ),
    "a router without routes": (
        module(1, type="sentence_transformers.models.Router"),
        "config.json",
        "types is missing",
    ),
    "the network twice": (
        modules(lambda listed: listed.insert(1, listed[0])),
        LIST,
        "Transformer at place 1",
    ),
    "no network": (modules(lambda listed: listed.pop(0)), LIST, "Pooling at place 0"),
    "no pooling": (modules(lambda listed: listed.pop(1)), LIST, "Dense at place 1"),
    "the network alone": (
        modules(lambda listed: listed.__delitem__(slice(1, None))),
        LIST,
        "lists no Pooling",
    ),
    "two poolings": (modules(lambda listed: listed.insert(2, listed[1])), LIST, "Pooling at place"),
    "a pooling of nothing": (fields(POOL, pooling_mode=[]), "pooling_mode", "one or several"),
    "a pooling of lists": (fields(POOL, pooling_mode=[["mean"]]), "pooling_mode", "one or several"),
    "a million poolings": (fields(POOL, pooling_mode=["mean"] * 50_000), "pooling_mode", "several"),
    "a pooling unheard of": (fields(POOL, pooling_mode="sum"), "pooling_mode", "one or several"),
    "a switch that is a text": (
        text(POOL, '{"pooling_mode_cls_token": "yes"}'),
        "pooling_mode_cls_token",
        "true or false",
    ),
    "a field of pooling unheard of": (fields(POOL, scale=2), "scale", "not known"),
    "a huge dimension": (fields(POOL, embedding_dimension=10**18), "embedding_dimension", "from 1"),
    "a dense layer of huge size": (fields(DENSE, in_features=2**62), "in_features", "from 1"),
    "a dense layer of no size": (fields(DENSE, out_features=0), "out_features", "from 1"),
    "a dense layer of another input": (
        fields(DENSE, module_input_name="token_embeddings"),
        "module_input_name",
        "sentence_embedding",
    ),
    "an activation that is code": (
        fields(DENSE, activation_function="evil.Pooling"),
        "activation_function",
        "torch.nn's",
    ),
    "an activation that reads files": (
        fields(DENSE, activation_function="torch.nn.load"),
        "activation_function",
        "torch.nn's",
    ),
    "an activation elsewhere": (
        fields(DENSE, activation_function="other.GELU"),
        "activation_function",
        "torch.nn's",
    ),
    "a length of nothing": (fields(OWN, max_seq_length=0), "max_seq_length", "from 1"),
    "a length that is a text": (fields(OWN, max_seq_length="20"), "max_seq_length", "from 1"),
    "a length that is none": (text(OWN, '{"max_seq_length": NaN}'), "max_seq_length", "from 1"),
    "a tokenizer's length below one": (fields(TOKENS, model_max_length=-1), "model_max", "from 1"),
    "lower case, perhaps": (fields(OWN, do_lower_case="yes"), "do_lower_case", "true or false"),
    "arguments of the model": (
        fields(OWN, model_args={"adapter": "evil"}),
        f"{OWN}: model_args: adapter",
        "may change numbers",
    ),
    "arguments of the config": (
        fields(OWN, config_kwargs={"hidden_act": "relu"}),
        "config_kwargs: hidden_act",
        "may change numbers",
    ),
    "another tokenizer": (
        fields(OWN, tokenizer_name_or_path="/etc"),
        "tokenizer_name_or_path",
        "null",
    ),
    "a chat template for vectors": (
        fields(
            OWN,
            modality_config={
                "message": {"method": "forward", "method_output_name": "last_hidden_state"}
            },
        ),
        "message",
        "chat template",
    ),
    "a method of another name": (
        fields(OWN, modality_config={"text": {"method": "__reduce__"}}),
        "text: method",
        "forward",
    ),
    "expanded queries": (fields(OWN, query_expansion={"length": 32}), "query_expansion", "null"),
    "a field in red": (text(OWN, '{"\\u001b[31mred": 1}'), OWN, "not known"),
    "prompts that are a list": (fields(TOP, prompts=["w1"]), f"{TOP}: prompts", "an object"),
    "a prompt that is a number": (fields(TOP, prompts={"a": 7}), "prompts: a", "a string"),
    "a default prompt that is missing": (
        fields(TOP, default_prompt_name="other"),
        "default_prompt_name",
        "one of its prompts",
    ),
    "another kind of model": (fields(TOP, model_type="SparseEncoder"), "model_type", "CrossEnc"),
    "dimensions below one": (fields(TOP, truncate_dim=-5), "truncate_dim", "from 1"),
    "a version that is a list": (fields(TOP, __version__=[6]), "__version__", "an object"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_33_s02_a_broken_list_of_modules_gets_one_sentence(folder: Path, name: str) -> None:
    change, what, words = BROKEN[name]
    change(folder)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as caught:
            PooledModelSpec.read(folder, PoolingParams(task=Task.EMBED))
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()
    sentence = str(caught.value)
    assert str(folder) in sentence
    assert what in sentence
    assert words in sentence
    assert sentence.isprintable()
    assert len(sentence) < 1000
    assert not (folder / "ran").exists()


def weights(**tensors: torch.Tensor) -> Break:
    def change(folder: Path) -> None:
        given = {name.replace("_", "."): each for name, each in tensors.items()}
        save_file(given, folder / "2_Dense/model.safetensors")

    return change


# What is broken, and words of the sentence.
BROKEN_WEIGHTS: dict[str, tuple[Break, str]] = {
    "a number that is none": (
        weights(linear_weight=torch.full((8, 64), torch.nan)),
        "model.safetensors: linear.weight contains NaN",
    ),
    "an infinite number": (
        weights(linear_weight=torch.full((8, 64), torch.inf)),
        "linear.weight contains NaN or infinity",
    ),
    "another shape": (weights(linear_weight=torch.ones(8, 63)), "must be [8, 64]"),
    "no matrix": (weights(linear_weight=torch.ones(8)), "must be [8, 64]"),
    "no weight": (weights(other=torch.ones(8)), "linear.weight"),
    "no file": (without("2_Dense/model.safetensors"), "2_Dense"),
    "pickles alone": (
        lambda folder: os.rename(
            folder / "2_Dense/model.safetensors", folder / "2_Dense/pytorch_model.bin"
        ),
        "can run code",
    ),
    "a file of nothing": (text("2_Dense/model.safetensors", ""), "corrupt"),
    "a bias that is missing": (fields(DENSE, bias=True), "linear.bias"),
    "a residual that is missing": (fields(DENSE, use_residual=True), "residual.weight"),
}


@pytest.mark.parametrize("name", BROKEN_WEIGHTS)
def test_33_s12_broken_weights_of_a_module_are_refused_while_loading(
    folder: Path, name: str
) -> None:
    change, words = BROKEN_WEIGHTS[name]
    change(folder)
    with pytest.raises(ModelError) as caught:
        pooled_model(folder).load_engine()
    sentence = str(caught.value)
    assert "2_Dense" in sentence
    assert words in sentence
    assert len(sentence.splitlines()) == 1


def test_33_the_command_ends_with_the_sentence(
    folder: Path, tmp_path: Path, pagedrun: Command
) -> None:
    module(1, path="../outside")(folder)
    rows = tmp_path / "rows.txt"
    rows.write_text("w1\n")
    out = tmp_path / "v.npy"
    status, said, err = pagedrun("embed", rows, "-o", out, "--model", folder, "--quiet")
    assert (status, said) == (2, "")
    assert "item 1: path" in err
    assert len(err.splitlines()) == 1
    assert not out.exists()
