"""The weights of a model, whatever files they are in."""

from pathlib import Path

from pagedrun.paged.files.gguf.gguf_path import is_gguf
from pagedrun.paged.models.base_checkpoint import BaseCheckpoint
from pagedrun.paged.models.gguf.gguf_checkpoint import GgufCheckpoint
from pagedrun.paged.models.weights import Checkpoint


def open_checkpoint(path: Path) -> BaseCheckpoint:
    """Map the safetensors files of a folder, or a GGUF file; `ModelError` for what is neither."""
    return GgufCheckpoint.open(path) if is_gguf(path) else Checkpoint.open(path)
