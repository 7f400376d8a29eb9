"""GGUF files with a vocabulary and nothing else, and the cut ones of llama.cpp.

vocabularies/ below tests/text/gguf has vocabularies of llama.cpp (models/ggml-vocab-*.gguf and
their expected ids, in the source archive of llama_cpp_python 0.3.36; the ids are from the models'
own tokenizers), cut to the tokens and merges that can occur in 16 of its texts, and renumbered.
"""

import json
from pathlib import Path
from typing import Any

import gguf

_FOLDER = Path(__file__).parents[1] / "text" / "gguf" / "vocabularies"
NAMES = sorted(path.stem for path in _FOLDER.glob("*.json"))


def vocabulary(name: str) -> dict[str, Any]:
    """Return `fields` of tokenizer.ggml, `general.name`, and `cases` of a text and its ids."""
    read: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return read


def write_vocabulary(path: Path, fields: dict[str, Any], name: str | None = None) -> Path:
    """Write `tokenizer.ggml.*` fields; those of other names with the dot in theirs."""
    writer = gguf.GGUFWriter(path, "llama")
    if name is not None:
        writer.add_name(name)
    for field, value in fields.items():
        key = field if field.startswith(("tokenizer.", "general.")) else f"tokenizer.ggml.{field}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
