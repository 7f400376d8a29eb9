"""Headers of checkpoints, read without torch, and the network as a checkpoint holds it.

`plan` needs the bytes of a model without its weights: names, shapes and dtypes of all tensors are
in the headers of safetensors and GGUF files. Checkpoints of one family may store the same
matrices in different tensors (experts one by one or stacked, quantized or not); `StoredNetwork`
is the network in the layout of one checkpoint, `has_own_head` tells whether a tied head is one in
fact. `weight_files` and `open_file` find and open the safetensors files of a folder, with checks.
"""

import json
import re
from collections.abc import Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from safetensors import SafetensorError, safe_open

from pagedrun.paged.files.folder_kinds import model_weights, other_kind
from pagedrun.paged.files.gguf import GgufFile, is_gguf
from pagedrun.paged.files.json_object import JsonObject, refuse_lfs_pointer
from pagedrun.paged.files.regular import open_regular
from pagedrun.paged.models.checkpoint.gguf_architectures import named_tensors
from pagedrun.paged.models.checkpoint.tensors import HEAD, Parameter, StoredTensor, TensorNames
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.values.errors import ModelError, listed


@dataclass(frozen=True, slots=True)
class CheckpointHeader:
    """The tensors of a model folder, or a GGUF file, by name; a `Header`."""

    tensors: Mapping[str, StoredTensor]

    @property
    def names(self) -> frozenset[str]:
        """All names."""
        return frozenset(self.tensors)

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor's shape and dtype."""
        return self.tensors[name]

    @classmethod
    def read(cls, path: Path) -> "CheckpointHeader | None":
        """Read the headers; None if weights are missing or damaged."""
        try:
            return cls(_of_gguf(path) if is_gguf(path) else _of_folder(path))
        except ModelError:
            return None


def _of_gguf(path: Path) -> dict[str, StoredTensor]:
    return {
        name: StoredTensor(tensor.shape, tensor.type.name)
        for name, (_, tensor) in named_tensors(GgufFile.open(path)).items()
    }


def _of_folder(folder: Path) -> dict[str, StoredTensor]:
    found = {}
    for name in weight_files(folder).names:
        file = open_file(folder / name, "np")
        for tensor in file.keys():  # noqa: SIM118 - safe_open is not a mapping
            header = file.get_slice(tensor)
            found[tensor] = StoredTensor(tuple(header.get_shape()), header.get_dtype())
    return found


def checkpoint_files(path: Path) -> tuple[Path, ...]:
    """Return the files with the tensors of a model folder, or of a GGUF file, in a fixed order.

    Raises `ModelError` if there are none.
    """
    if is_gguf(path):
        return tuple(part.path for part in GgufFile.open(path).parts)
    return tuple(path / name for name in sorted(weight_files(path).names))


class Header(Protocol):
    """Header of a checkpoint, by its own tensor names."""

    @property
    def names(self) -> Set[str]:
        """All names."""
        ...

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor's shape and dtype."""
        ...


@dataclass(frozen=True, slots=True)
class RenamedHeader:
    """Header under the names of a network; implements `StoredTensors`."""

    header: Header
    names: TensorNames

    def get(self, name: str) -> StoredTensor | None:
        """Return the tensor stored under a name, if any."""
        theirs = self.names.of(name)
        return self.header.stored(theirs) if theirs in self.header.names else None


def stored_bytes_of(header: Header) -> int:
    """Return the bytes of all tensors of a checkpoint."""
    return sum(header.stored(name).num_bytes for name in header.names)


@dataclass(frozen=True, slots=True)
class StoredNetwork:
    """Network in the layout of a checkpoint, with its tensor names and stored tensors.

    `parameters` are all tensors to read, some of which may be missing.
    """

    network: DecoderSpec
    names: TensorNames
    stored: RenamedHeader
    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, network: DecoderSpec, header: Header) -> "StoredNetwork":
        """Return a network as the checkpoint with this header holds it."""
        names = network.tensors.layout(network.embedding.weight.name, header.names)
        stored = RenamedHeader(header, names)
        held = network.stored_as(stored)
        return cls(held, names, stored, held.parameters(stored))

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors that are read, in their file."""
        found = (self.stored.get(each.name) for each in self.parameters)
        return sum(each.num_bytes for each in found if each is not None)


# The head of the decoder, of any layout; its tensors if it is quantized.
_OF_HEAD = re.compile(rf"(?:.*\.)?{HEAD}\..*")
_COMPARED_AT_ONCE = 2**22


def has_own_head(folder: Path, network: DecoderSpec) -> bool:
    """Return True if a folder holds a head besides the embedding, and they are not the same.

    Transformers ties them only if they are equal or one is missing, whatever `tie_word_embeddings`
    says. Equal ones are read to the end, others up to the first difference. False if weights are
    missing or damaged: loading says so.
    """
    try:
        files = _files_of_tensors(folder)
        table = network.tensors.layout(network.embedding.weight.name, files).of(
            network.embedding.weight.name
        )
        heads = [
            name
            for name in files
            if _OF_HEAD.fullmatch(name) and not name.startswith(network.tensors.dropped)
        ]
        return table in files and not all(_are_equal(files, table, name) for name in heads)
    except (ModelError, OSError):
        return False


def _files_of_tensors(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor of a folder; an index is trusted."""
    found = weight_files(folder)
    if found.shard_of:
        return {name: folder / shard for name, shard in found.shard_of.items()}
    paths = [folder / name for name in found.names]
    return {name: path for path in paths for name in open_file(path, "np").keys()}  # noqa: SIM118


def _are_equal(files: Mapping[str, Path], one: str, other: str) -> bool:
    """Return True if two tensors have the same shape, dtype and bytes."""
    with ExitStack() as opened:
        (first, start, like), (second, also, as_well) = (
            _opened_at(files[name], name, opened) for name in (one, other)
        )
        if like != as_well:
            return False
        first.seek(start)
        second.seek(also)
        left = like.num_bytes
        while left > 0:
            size = min(left, _COMPARED_AT_ONCE)
            if first.read(size) != second.read(size):
                return False
            left -= size
    return True


def _opened_at(path: Path, name: str, opened: ExitStack) -> tuple[BinaryIO, int, StoredTensor]:
    """Return a safetensors file, and where the bytes of a tensor begin in it."""
    tensor = open_file(path, "np").get_slice(name)
    file = opened.enter_context(path.open("rb"))
    num_header_bytes = int.from_bytes(file.read(8), "little")
    start, _ = json.loads(file.read(num_header_bytes))[name]["data_offsets"]
    stored = StoredTensor(tuple(tensor.get_shape()), tensor.get_dtype())
    return file, 8 + num_header_bytes + start, stored


SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# A file of the folder itself: the name cannot lead elsewhere. It may be a link, since the Hugging
# Face cache links to its files.
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\.safetensors")
# The safetensors package allows 100 MB, gigabytes once parsed; a checkpoint with 10^5 tensors has
# about 10 MB.
MAX_HEADER_BYTES = 2**25


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Names of files in a folder; `shard_of` is the file of each tensor by the index."""

    names: tuple[str, ...]
    shard_of: Mapping[str, str] = field(default_factory=dict)


def weight_files(folder: Path) -> WeightFiles:
    """Return model.safetensors, else the shards of the index, else every *.safetensors file of a
    model.

    Raises `ModelError` if there are none, or the index is damaged or leads out of the folder.
    """
    if (folder / SINGLE_FILE).exists():
        return WeightFiles((SINGLE_FILE,))
    if (folder / INDEX_FILE).exists():
        shard_of = _read_index(folder / INDEX_FILE)
        return WeightFiles(tuple(sorted(set(shard_of.values()))), shard_of)
    names = model_weights(folder)
    if not names:
        raise _no_weights(folder)
    return WeightFiles(tuple(names))


def _read_index(path: Path) -> dict[str, str]:
    """Return the shard of each tensor; all shard names are checked."""
    weight_map = JsonObject.read(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{path}: weight_map is missing or empty; download the model again")
    shard_of: dict[str, str] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard):
            raise ModelError(
                f"{path}: weight_map names {ascii(shard)[:80]}, which is not a *.safetensors file "
                "in this folder; download the model again"
            )
        shard_of[name] = shard
    return shard_of


def _no_weights(path: Path) -> ModelError:
    kind = other_kind(path)
    if kind is not None:
        return ModelError(f"{path} {kind}")
    others = sorted(
        file.name
        for file in path.iterdir()
        if file.suffix in (".bin", ".pth", ".pt", ".ckpt", ".gguf")
    )
    if not others:
        return ModelError(
            f"{path}: there are no *.safetensors files; pass a Hugging Face model folder, or "
            "download the model again"
        )
    if others[0].endswith(".gguf"):
        return ModelError(
            f"{path}: the weights are in GGUF format ({listed(others)}); pass the path of that file"
        )
    return ModelError(
        f"{path}: the only weights are in {listed(others)}, and such files can run code "
        "when they are read; convert them with transformers where you trust them, "
        "AutoModelForCausalLM.from_pretrained(...).save_pretrained(...), or use a version of the "
        "model with safetensors"
    )


def open_file(path: Path, framework: str) -> Any:
    """Open a file for `framework` "pt" or "np"; only the first imports torch.

    Raises `ModelError` if it is missing, damaged, no regular file, or a git-lfs pointer.
    """
    try:
        with open_regular(path) as file:
            num_header_bytes = int.from_bytes(file.read(8), "little")
    except FileNotFoundError as error:
        raise ModelError(
            f"{path.parent}: {path.name} is missing, or a broken link; download the model again"
        ) from error
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read ({error.strerror}); download the model again"
        ) from error
    refuse_lfs_pointer(path)
    if num_header_bytes > MAX_HEADER_BYTES:
        raise ModelError(
            f"{path} is corrupt: its header is {num_header_bytes:,} bytes long, where "
            f"{MAX_HEADER_BYTES:,} are enough for any model; download it again"
        )
    try:
        return safe_open(path, framework=framework, device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"{path} is truncated or corrupt ({str(error)[:120]}); download it again"
        ) from error
