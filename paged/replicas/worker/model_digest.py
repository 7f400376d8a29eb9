"""A digest of a model's files, by which replicas know that they have the same one."""

import hashlib
import tempfile
from pathlib import Path

from pagedrun.kernels.environment.code_folder import private_folder
from pagedrun.paged.cache.prefix_store.folder import weights_digest
from pagedrun.paged.models.checkpoint.model_tensors import open_checkpoint

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def model_digest(folder: Path, tokenizer: Path) -> str:
    """Return the SHA-256 of weights and tokenizer, names and contents, as hex.

    A large file is read once and its digest remembered in the user's cache. Raises `OSError` for a
    file that cannot be read.
    """
    with open_checkpoint(folder) as checkpoint:
        files = checkpoint.files
    memory = private_folder("digests")
    if memory is not None:
        digest = hashlib.sha256(weights_digest(memory, files).encode())
    else:
        with tempfile.TemporaryDirectory() as forgotten:
            digest = hashlib.sha256(weights_digest(Path(forgotten), files).encode())
    for name in _TOKENIZER:
        path = tokenizer / name
        if path.is_file():
            digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()
