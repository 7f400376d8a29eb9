"""Small valid files for each reader: those of corpora/, and packed or binary ones made here."""

import io
import json
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from pagedrun.paged import bench
from pagedrun.paged.cache.prefix_store.entry import StoredPrefix, StoreIdentity
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.planned_request import ROOT_DIGEST
from tests.support.small_runs import play

_CORPORA = Path(__file__).parent / "corpora"
Seeds = Callable[[], list[bytes]]


def _read(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((_CORPORA / name).iterdir())]


def of(name: str) -> Seeds:
    """Return the seeds in a folder of corpora/."""
    return partial(_read, name)


def packed(name: str, pack: Callable[[bytes], bytes]) -> Seeds:
    """Return the seeds in a folder of corpora/, compressed."""
    return lambda: list(map(pack, _read(name)))


def configs() -> list[bytes]:
    """Return a config.json of each kind of published model, and those of corpora/."""
    shapes = json.loads((Path(bench.__path__[0]) / "model_shapes.json").read_bytes())
    by_type = {fields["model_type"]: fields for fields in shapes.values()}
    return [*_read("config"), *(json.dumps(each).encode() for each in by_type.values())]


def safetensors() -> list[bytes]:
    """Return the weights of the first of `configs`, of zeros."""
    config = JsonObject.parse("config.json", _read("config")[0])
    parameters = ModelConfig.from_json(config).network.parameters()
    tensors = {each.name: np.zeros(each.shape, np.float16) for each in parameters}
    return [save(tensors), save(tensors, {"format": "pt"})]


def snapshots() -> list[bytes]:
    """Return the snapshot of a small run, not compressed."""
    made = io.BytesIO()
    with np.load(io.BytesIO(play(2).snapshot().to_bytes())) as columns:
        np.savez(made, **{name: columns[name] for name in columns.files})
    return [made.getvalue()]


def store_entries() -> list[bytes]:
    """Return a file of a prefix store."""
    identity = StoreIdentity("m", {"block_size": 4, "dtype": "float32"})
    entry = StoredPrefix(identity, ROOT_DIGEST, 0, (1, 2, 3, 4))
    return [save({"kv": np.zeros((1, 2, 1, 1, 4, 2), np.float32)}, entry.metadata())]


# Types of GGUF, and codes of struct.
_SCALARS = {bool: (7, "<?"), int: (4, "<I"), float: (6, "<f")}
_TEXT, _LIST = 8, 9
_WIDTH = 32
_SPECIAL = ["<s>", "</s>", "<unk>"]
_VOCABULARIES = {
    "gpt2": [*_SPECIAL, "a", "b", "c", "ab", "abc"],
    "llama": [*_SPECIAL, "▁", "a", "b", "▁a", "ab", "<0x41>"],
    "bert": [*_SPECIAL, "▁a", "b", "[x]"],
    "t5": [*_SPECIAL, "▁", "a", "▁a"],
}


def ggufs() -> list[bytes]:
    """Return models of one layer, with the vocabularies of each kind."""
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    made = []
    for model, tokens in _VOCABULARIES.items():
        architecture = "llama" if model == "llama" else "qwen3"
        norms = ["attn_norm", "ffn_norm"]
        norms += [] if model == "llama" else ["attn_q_norm", "attn_k_norm"]
        tensors: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (len(tokens), _WIDTH),
            "output_norm.weight": (_WIDTH,),
            **{f"blk.0.{name}.weight": (_WIDTH, _WIDTH) for name in square},
            **{f"blk.0.{name}.weight": (_WIDTH,) for name in norms},
        }
        own = json.loads(_read("gguf")[0])
        fields = {f"{architecture}.{name}": value for name, value in own["model"].items()}
        vocabulary = {
            **own["vocabulary"],
            "model": model,
            "tokens": tokens,
            "token_type": [3, 3, 2, *[1] * (len(tokens) - 3)],
            "scores": [-1.0 - number for number in range(len(tokens))],
        }
        fields |= {f"tokenizer.ggml.{name}": value for name, value in vocabulary.items()}
        fields["tokenizer.chat_template"] = "{{ messages[0]['content'] }}"
        made.append(_gguf({"general.architecture": architecture, **fields}, tensors))
    return made


def _gguf(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return a GGUF file with tensors of float32, by the description of the format."""
    made = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for name, value in metadata.items():
        kind, stored = _value(value)
        made += _text(name) + struct.pack("<I", kind) + stored
    end = 0
    for name, shape in tensors.items():
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        made += _text(name) + dims + struct.pack("<IQ", 0, end)
        end += 4 * int(np.prod(shape))
    return made + bytes(-len(made) % 32 + end)


def _value(value: Any) -> tuple[int, bytes]:
    """Return the type of a value, and its bytes."""
    if isinstance(value, str):
        return _TEXT, _text(value)
    if isinstance(value, list):
        items = b"".join(_value(each)[1] for each in value)
        return _LIST, struct.pack("<IQ", _value(value[0])[0], len(value)) + items
    kind, code = _SCALARS[type(value)]
    return kind, struct.pack(code, value)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
