"""Which model paths are GGUF files; a file of its own, since the command line asks before numpy."""

from pathlib import Path

_SUFFIX = ".gguf"


def is_gguf(path: Path) -> bool:
    """Whether a model's path is that of a GGUF file, as its name says."""
    return path.suffix.lower() == _SUFFIX and not path.is_dir()
