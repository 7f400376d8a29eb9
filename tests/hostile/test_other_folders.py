"""Folders that are no model: each is refused in one sentence with what it is and the way out."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagedrun import LLM
from pagedrun.paged.files.folder_kinds import other_kind
from pagedrun.paged.values.errors import ModelError
from tests.conftest import MakeModel

SINGLE = "model.safetensors"
ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Path:
    return make_model("qwen2", "other-folders")


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        LLM(folder, dtype="float32", device="cpu")
    message = str(caught.value)
    assert message.isprintable()
    assert str(folder) in message
    return message


def empty_files(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "is empty; pass the folder of a model"),
        (("onnx/model.onnx",), "has weights for ONNX alone (model.onnx); use the version"),
        (("openvino_model.xml", "openvino_model.bin"), "for OpenVINO alone"),
        (("openvino/model.xml",), "for OpenVINO alone"),
        (("model.onnx",), "for ONNX alone"),
        (("rank0.engine",), "for TensorRT alone"),
        (("model.mlmodel",), "for Core ML alone"),
        (("model.mlpackage/Manifest.json",), "for Core ML alone"),
        (("model.tflite",), "for LiteRT alone"),
        (("model.litertlm",), "for LiteRT alone"),
        (("model.task",), "for LiteRT alone"),
        (("tf_model.h5",), "for TensorFlow alone"),
        (("flax_model.msgpack",), "for Flax alone"),
        (("consolidated.safetensors", "params.json", "tekken.json"), "Mistral's own programs"),
        (("consolidated.00.pth", "params.json"), "Meta's own programs"),
        (("model_index.json", "unet/config.json"), "is a pipeline of diffusers"),
        (("checkpoint-500/config.json", "checkpoint-1000/config.json"), "/checkpoint-1000"),
        ((".metadata", "__0_0.distcp"), "`accelerate merge-weights"),
        (("pytorch_model_fsdp_0/__0_0.distcp",), "merge-weights pytorch_model_fsdp_0 FOLDER`"),
        (("global_step5/a.pt", "zero_to_fp32.py"), "join them with its zero_to_fp32.py"),
        (("snapshots/abc/config.json",), "pass its snapshot"),
        (("final/config.json", "final/model.safetensors"), "pass the folder in it"),
        (("a-00002-of-00003.gguf",), "not the first part of that model"),
    ],
)
def test_what_it_is_is_said(tmp_path: Path, names: tuple[str, ...], words: str) -> None:
    empty_files(tmp_path, *names)
    assert words in refusal(tmp_path)


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_an_adapter_alone(model: Path, tmp_path: Path, has_tokenizer: bool) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(ADAPTER))
    save_file({"a": torch.zeros(2)}, tmp_path / "adapter_model.safetensors")
    if has_tokenizer:
        shutil.copy(model / "tokenizer.json", tmp_path)
    message = refusal(tmp_path)
    assert "holds an adapter of org/base (adapter_config.json) and no model" in message
    assert "merge_and_unload().save_pretrained(" in message


def test_an_adapter_beside_a_model(model: Path, tmp_path: Path) -> None:
    """Transformers with PEFT would apply it."""
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    (tmp_path / "adapter_config.json").write_text(json.dumps(ADAPTER))
    assert "holds a model and an adapter of org/base" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda tensors: {f"base_model.model.{name}": each for name, each in tensors.items()},
            "an adapter that is not merged",
        ),
        (lambda tensors: {**tensors, "a.lora_A.weight": torch.zeros(1)}, "merge_and_unload()"),
        (lambda tensors: {**tensors, "a.biases": torch.zeros(1)}, "the names are those of MLX"),
        (
            lambda tensors: {name: each.double() for name, each in tensors.items()},
            "stored as F64, but pagedrun reads F32, F16 and BF16 there; convert it with transform",
        ),
    ],
)
def test_tensors_of_other_programs(
    model: Path,
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]],
    words: str,
) -> None:
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    tensors = change(load_file(model / SINGLE))
    save_file(tensors, tmp_path / SINGLE, metadata={"format": "pt"})
    assert words in refusal(tmp_path)


def test_a_model_with_other_files_beside_it_is_one(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    empty_files(
        tmp_path,
        "onnx/model.onnx",
        "1_Pooling/config.json",
        "checkpoint-5/config.json",
        "optimizer.pt",
        "training_args.bin",
        "consolidated.safetensors",
    )
    assert other_kind(tmp_path) is None
    LLM(tmp_path, dtype="float32", device="cpu")
    (tmp_path / "tokenizer.json").unlink()
    assert "needs tokenizer.json" in refusal(tmp_path)


def test_the_main_snapshot_is_named(model: Path, tmp_path: Path) -> None:
    empty_files(tmp_path, "snapshots/a/config.json", "snapshots/b/config.json", "refs/main")
    (tmp_path / "refs" / "main").write_text("a")
    assert refusal(tmp_path).endswith("/snapshots/a")
    assert refusal(tmp_path / "snapshots").endswith("/snapshots/a")
