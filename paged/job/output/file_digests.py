"""Digests by which a later run or reader tells whether model and texts are still the same."""

import hashlib
from pathlib import Path

from pagedrun.paged.values.json_value import JSONValue

MAX_HEADER_BYTES = 100_000_000  # of a safetensors file, as the format has it


def files_digest(model: Path, tokenizer: Path) -> str:
    """Return a digest of tokenizer files and of weights, of which headers and sizes must do."""
    digest = hashlib.sha256()
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


def text_digest(text: str | None) -> dict[str, JSONValue] | None:
    """Return what tells two texts apart without repeating either."""
    if text is None:
        return None
    return {
        "sha256": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(),
        "chars": len(text),
    }
