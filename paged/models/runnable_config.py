"""RunnableConfig: properties of a model that a run needs before its weights are read.

`model_identity` is the part of a prefix store's key that comes from the model: its description,
and a digest of the code of kernels and models.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pagedrun.kernels
import pagedrun.paged.models
from pagedrun.paged.files.folder_kinds import CONFIG, other_kind, refuse_adapter
from pagedrun.paged.files.json_object import JsonObject, is_integer, require_folder
from pagedrun.paged.models.network import Network
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError, option
from pagedrun.paged.values.report_parts import TransformersPath

DtypeName = Literal["float32", "bfloat16", "float16"]
_DTYPES: dict[str, DtypeName] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
}


@dataclass(frozen=True, slots=True)
class RunnableConfig:
    """Network of a model, its end-of-sequence tokens and its dtype.

    `max_position_embeddings` is the longest context, in tokens. `eos_token_ids` lists those of
    generation_config.json first. `dtype` is the one the weights were meant for ("float32" where
    config.json does not say). `by_torch`: products are those of torch instead of a backend.
    """

    model_type: str
    network: Network
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    dtype: DtypeName

    @property
    def by_torch(self) -> bool:
        """True for products of torch, as in models that another library computes alone."""
        return False

    @property
    def vocab_size(self) -> int:
        """Tokens in the embedding."""
        return self.network.vocab_size

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Each layer's sliding window, None for full attention."""
        return self.network.windows

    def held_as(self, quantization: str, folder: Path) -> "RunnableConfig":
        """Return the model with its weights quantized as `EngineConfig.quantization` says.

        Raises `ModelError` naming `folder` if they cannot be.
        """
        if quantization == "int8":
            raise ModelError(
                f"{folder}: Transformers' code computes {self.model_type} unquantized; leave out "
                f"{option('quantization')} int8"
            )
        return self

    @property
    def library(self) -> TransformersPath | None:
        """Plan section of a model computed by Transformers, else None."""
        return None

    @property
    def notice(self) -> str | None:
        """Notice to the user before rows are computed, if any."""
        return None

    def settings(self, config: EngineConfig) -> EngineConfig:
        """Return the settings of a run that apply to the model.

        Raises `UsageError` for an explicit setting that the model does not support.
        """
        return config

    def check_tokenizer(self, vocab_size: int, folder: Path) -> None:
        """Raise `ModelError` if a tokenizer's ids do not fit into the embedding of `folder`."""
        if vocab_size > self.vocab_size:
            raise ModelError(
                f"{folder}: the tokenizer has {vocab_size} tokens but the model's embedding only "
                f"{self.vocab_size}; use the model's own tokenizer"
            )


def read_configs(folder: str | Path) -> tuple[JsonObject, JsonObject | None]:
    """Return the contents of a folder's config.json and generation_config.json, if any.

    Raises `ModelError` if the folder or config.json is missing or unreadable, and for a folder with
    an adapter.
    """
    path = require_folder(folder)
    refuse_adapter(path)
    kind = None if (path / CONFIG).exists() else other_kind(path)
    if kind is not None:
        raise ModelError(f"{path} {kind}")
    config = JsonObject.read(path / CONFIG)
    generation_path = path / "generation_config.json"
    return config, JsonObject.read(generation_path) if generation_path.exists() else None


def eos_token_ids(
    generation: JsonObject | None,
    configs: Sequence[JsonObject],
    default: int | tuple[int, ...] | None,
    vocab_size: int,
) -> tuple[int, ...]:
    """Return every id that ends a sequence, without repeats, generation_config.json's first.

    `default` applies if no file has one. The files may differ: with the ids of `text_config` alone
    a chat model would run past the end of its turn.
    """
    told = configs if generation is None else (generation, *configs)
    found = [each for fields in told for each in _token_ids(fields, "eos_token_id", vocab_size)]
    silent = not any("eos_token_id" in fields for fields in configs)
    if silent and not found and default is not None:
        ids = (default,) if isinstance(default, int) else default
        found += [each for each in ids if each < vocab_size]  # a smaller model has other ids
    return tuple(dict.fromkeys(found))


def _token_ids(fields: JsonObject, name: str, vocab_size: int) -> list[int]:
    value = fields.get(name)
    if value is None:
        return []
    given = value if isinstance(value, list) else [value]
    ids = [item for item in given if is_integer(item) and 0 <= item < vocab_size]
    if len(given) > 1024 or len(ids) != len(given):
        raise fields.error(name, f"a token id or a list of them, each from 0 to {vocab_size - 1}")
    return ids


def stored_dtype(config: JsonObject) -> DtypeName:
    """Return the number format that the weights were meant for, float32 where nothing is said."""
    name = "dtype" if config.has("dtype") else "torch_dtype"
    value = config.string(name) or "float32"
    if value not in _DTYPES:
        raise config.error(name, f"one of {', '.join(_DTYPES)}")
    return _DTYPES[value]


def model_identity(config: RunnableConfig) -> dict[str, str]:
    """Return the sources of the bytes that a model computes, besides weights and machine.

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
