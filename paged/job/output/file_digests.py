"""Digests by which a later run or reader tells whether model and texts are still the same."""

import hashlib
from pathlib import Path

from pagedrun.paged.files.gguf.gguf_file import GgufFile
from pagedrun.paged.files.gguf.gguf_path import is_gguf
from pagedrun.paged.values.json_value import JSONValue

MAX_HEADER_BYTES = 100_000_000  # of a safetensors file, as the format has it


def config_digest(model: Path) -> str:
    """Return a digest of what says which network a model is: config.json, or a GGUF's header."""
    if is_gguf(model):
        return hashlib.sha256(_gguf_headers(model)).hexdigest()
    return hashlib.sha256((model / "config.json").read_bytes()).hexdigest()


def files_digest(model: Path, tokenizer: Path) -> str:
    """Return a digest of tokenizer files and of weights, of which headers and sizes must do."""
    digest = hashlib.sha256()
    for path in filter(is_gguf, dict.fromkeys((model, tokenizer))):
        digest.update(_gguf_headers(path))
    for path in sorted(model.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            digest.update(file.read(min(size, MAX_HEADER_BYTES)))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        path = tokenizer / name
        if path.is_file():
            digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _gguf_headers(path: Path) -> bytes:
    """Return name, size and header of each part, the first of which has the tokenizer too."""
    found = b""
    for part in GgufFile.open(path).parts:
        found += f"{part.path.name} {part.path.stat().st_size}\n".encode() + part.header
    return found


def text_digest(text: str | None) -> dict[str, JSONValue] | None:
    """Return what tells two texts apart without repeating either."""
    if text is None:
        return None
    return {
        "sha256": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(),
        "chars": len(text),
    }
