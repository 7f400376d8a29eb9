"""The identity of a model's computation: its description, and the code that computes it."""

import hashlib
from functools import cache
from pathlib import Path

import pagedrun.kernels
import pagedrun.paged.models
from pagedrun.paged.models.runnable_config import RunnableConfig


def model_identity(config: RunnableConfig) -> dict[str, str]:
    """Return what decides the bytes that a model computes, besides weights and machine.

    `config`: a digest of the network's description. `code`: one of every kernel and layer.
    """
    described = hashlib.sha256(repr(config.network).encode()).hexdigest()
    return {"config": described, "code": _code_digest()}


@cache
def _code_digest() -> str:
    """Return a digest of the source of every kernel and layer.

    A number to be raised by hand would be forgotten once, and old keys would be taken for new.
    """
    digest = hashlib.sha256()
    for package in (pagedrun.kernels, pagedrun.paged.models):
        folder = Path(package.__file__ or "").parent
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder).as_posix()
            if not name.startswith("environment/"):
                digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
