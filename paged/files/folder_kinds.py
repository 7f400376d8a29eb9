"""Folders that are no model: what people pass instead of one, and the way out.

Adapters, caches, trainings and other formats have files by which they are known. Nothing in a
folder is read but names, and the base model of an adapter.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.values.errors import ModelError, listed

ADAPTER_CONFIG = "adapter_config.json"
CONFIG = "config.json"
_OTHER_WEIGHTS = ("adapter_model", "consolidated")


def other_kind(folder: Path) -> str | None:
    """Return what a folder without a model is and what to do, to follow its name in a message.

    None for a folder of no known kind, and for one with weights.
    """
    if model_weights(folder):
        return None
    kinds: tuple[Callable[[Path], str | None], ...] = (
        _adapter,
        _pipeline,
        _hub_cache,
        _training,
        _sharded,
        _foreign,
        _around,
        _without_model,
    )
    return next((found for kind in kinds if (found := kind(folder)) is not None), None)


def model_weights(folder: Path) -> list[str]:
    """Return the names of the *.safetensors files of a model, without adapters and those in the
    format of Mistral's own programs."""
    found = _names(folder, "*.safetensors")
    return [name for name in found if not name.startswith(_OTHER_WEIGHTS)]


def refuse_adapter(folder: Path) -> None:
    """Raise `ModelError` for a folder with an adapter, be there a model beside it or not.

    Transformers with PEFT applies it, so that the model alone would give other answers.
    """
    if (folder / ADAPTER_CONFIG).is_file():
        raise ModelError(f"{folder} {_adapter(folder)}")


def _adapter(folder: Path) -> str | None:
    path = folder / ADAPTER_CONFIG
    if not path.is_file():
        return None
    try:
        base = JsonObject.read(path).string("base_model_name_or_path")
    except ModelError:
        base = None
    of_base = f" of {ascii(base)[1:-1][:120]}" if base else ""
    merge = (
        f"merge it with PEFT, AutoPeftModelForCausalLM.from_pretrained({path.parent.name!a})"
        ".merge_and_unload().save_pretrained(...), and pass that folder"
    )
    if model_weights(folder):
        return f"holds a model and an adapter{of_base} ({path.name}); {merge}, or move it elsewhere"
    return f"holds an adapter{of_base} ({path.name}) and no model; {merge}"


def _pipeline(folder: Path) -> str | None:
    if not (folder / "model_index.json").is_file():
        return None
    return (
        "is a pipeline of diffusers (model_index.json), which makes images; pass the folder of a "
        "language model"
    )


def _hub_cache(folder: Path) -> str | None:
    snapshots = folder if folder.name == "snapshots" else folder / "snapshots"
    found = _models_in(snapshots)
    if not found:
        return None
    main = snapshots.parent / "refs" / "main"
    snapshot = found[-1]
    if main.is_file():
        with main.open("rb") as file:
            commit = file.read(64).decode("ascii", "replace").strip()
        snapshot = next((each for each in found if each.name == commit), snapshot)
    return f"is a model in the cache of the Hugging Face hub; pass its snapshot {snapshot}"


def _training(folder: Path) -> str | None:
    found = [each for each in _models_in(folder) if each.name.startswith("checkpoint-")]
    if not found:
        return None
    last = max(found, key=lambda each: (len(each.name), each.name))
    return f"holds the checkpoints of a training; pass one of them, such as {last}"


def _sharded(folder: Path) -> str | None:
    parts = next((each for each in (folder, *_folders(folder)) if _names(each, "*.distcp")), None)
    if parts is not None:
        return (
            f"holds the shards of a training (*.distcp in {parts}); join them with "
            f"`accelerate merge-weights {parts.name} FOLDER`, and pass that folder"
        )
    if any(each.name.startswith("global_step") for each in _folders(folder)):
        return (
            "holds the shards of a training by DeepSpeed; join them with its zero_to_fp32.py, with "
            "--safe_serialization, and pass that folder"
        )
    return None


# Patterns of files, the program that they are for, and where a model for pagedrun may be had.
_ORIGINAL = "use the version of the model with config.json and *.safetensors"
_FORMATS = (
    (("*.onnx", "onnx/*.onnx"), "ONNX", _ORIGINAL),
    (("openvino*.xml", "openvino/*.xml"), "OpenVINO", _ORIGINAL),
    (("*.engine",), "TensorRT", _ORIGINAL),
    (("*.mlmodel", "*.mlpackage"), "Core ML", _ORIGINAL),
    (("*.tflite", "*.litertlm", "*.task"), "LiteRT", _ORIGINAL),
    (("*.h5",), "TensorFlow", _ORIGINAL),
    (("*.msgpack",), "Flax", _ORIGINAL),
    (
        ("consolidated*.safetensors",),
        "Mistral's own programs",
        f"{_ORIGINAL}, which the hub has beside these",
    ),
    (
        ("consolidated*.pth",),
        "Meta's own programs",
        f"such files can run code when they are read; {_ORIGINAL}",
    ),
)


def _foreign(folder: Path) -> str | None:
    for patterns, program, way_out in _FORMATS:
        found = [name for pattern in patterns for name in _names(folder, pattern)]
        if found:
            return f"has weights for {program} alone ({listed(found)}); {way_out}"
    return None


def _around(folder: Path) -> str | None:
    if (folder / CONFIG).exists():
        return None
    found = [each for each in _models_in(folder) if model_weights(each)]
    return f"holds no model itself; pass the folder in it, {found[0]}" if found else None


def _without_model(folder: Path) -> str | None:
    if not any(folder.iterdir()):
        return "is empty; pass the folder of a model, or download the model again"
    parts = _names(folder, "*-of-*.gguf")
    if parts:
        return f"holds {listed(parts)}, and not the first part of that model; download it again"
    is_tokenizer = (folder / "tokenizer.json").is_file()
    if is_tokenizer and not (folder / CONFIG).exists():
        return "holds a tokenizer and no model; pass the folder of the model"
    return None


def _models_in(folder: Path) -> list[Path]:
    """Return the folders in a folder that have a config.json, sorted."""
    return [each for each in _folders(folder) if (each / CONFIG).is_file()]


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(each for each in folder.iterdir() if each.is_dir())


def _names(folder: Path, pattern: str) -> list[str]:
    found: Iterable[Path] = folder.glob(pattern) if folder.is_dir() else ()
    return sorted(each.name for each in found)
