"""Parameters of a network, and the tensors of a checkpoint and their names, without torch.

`plan` sizes a model by them and the loader reads by them. A `Part` of a network declares its
`Parameter`s. `StoredTensors` gives shape and dtype of each tensor from the header of a checkpoint.
`HeldCodes` adds the kernels of the backend, by which weights stay quantized in memory. A
`StoredLinear` is a linear layer as a checkpoint holds it. A `RowOrder` permutes rows of a matrix
from the order of the checkpoint to that of the kernels.

pagedrun calls tensors `model.…` and `lm_head.…`. Checkpoints of models with a vision tower put
other prefixes before the decoder's names, and hold tensors of other parts, which are ignored by
prefix (`NamedTensors`).
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate
from typing import Protocol

from pagedrun.kernels.quantized_form import Activations, CodeForm, CodeKernels
from pagedrun.paged.files.gguf import BLOCK_TYPES


class Role(Enum):
    """Role of a tensor, which decides its random values."""

    MATRIX = "matrix"
    BIAS = "bias"
    NORM = "norm"
    SCALE = "scale"
    QUANTIZED = "quantized"


# Dtypes of unquantized tensors, in the names of safetensors.
FLOATS = ("F32", "F16", "BF16")


class RowOrder(Protocol):
    """Order of the rows of a matrix in the kernels, applied as it is read; a value."""

    def rows(self, num_rows: int) -> list[int]:
        """Return the row indices of a tensor of `num_rows` rows in this order."""
        ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Shape of a tensor and its dtype in the names of safetensors, such as "F8_E4M3"."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        num_values, block = math.prod(self.shape), _BLOCKS.get(self.dtype)
        if block is not None:
            return num_values // block.num_weights * block.num_bytes
        return num_values * _BYTES.get(self.dtype, 1)


class StoredTensors(Protocol):
    """Tensors of a checkpoint by the names of a network's parameters."""

    def get(self, name: str) -> StoredTensor | None:
        """Return the tensor stored under a name, if any."""
        ...


class _Nothing:
    def get(self, name: str) -> StoredTensor | None:
        return None


# For a network without a checkpoint.
NO_TENSORS: StoredTensors = _Nothing()


# Bytes of a number in dtypes of other sizes than one byte, blocks of GGUF excepted.
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
_BLOCKS = {each.name: each for each in BLOCK_TYPES.values()}


def number_bytes(stored: "StoredTensors", name: str) -> int:
    """Return the bytes of a number of a tensor after reading: 2 for 16-bit floats, else 4."""
    tensor = stored.get(name)
    return 2 if tensor is not None and tensor.dtype in ("F16", "BF16") else 4


@dataclass(frozen=True, slots=True)
class StoredLinear:
    """Linear layer as a checkpoint holds it; the experts of an MoE layer are one for a projection.

    form: of quantized weights, None for others. has_int8_inputs: its inputs are rounded to int8
    whatever `Activations` says.
    """

    in_features: int
    form: CodeForm | None = None
    is_of_experts: bool = False
    has_int8_inputs: bool = False


@dataclass(frozen=True, slots=True)
class HeldCodes:
    """Tensors `stored` for a model in `dtype` on `kernels`; implements `StoredTensors`.

    Empty if the kernels hold no quantized weights. `activations`: inputs of those that they hold.
    """

    stored: StoredTensors
    kernels: CodeKernels
    dtype: str
    activations: Activations = Activations.AUTO

    def get(self, name: str) -> StoredTensor | None:
        """Return the tensor stored under a name, if any."""
        return None if self.kernels is CodeKernels.NONE else self.stored.get(name)

    def hold(self, form: CodeForm, in_features: int) -> bool:
        """Return True if linear layers hold codes of this form."""
        return self.kernels.hold(form, in_features, self.dtype)

    def holds(self, linear: StoredLinear) -> bool:
        """Return True if the weights of a linear layer stay quantized."""
        own = self.of_experts if linear.is_of_experts else self
        return linear.form is not None and own.hold(linear.form, linear.in_features)

    def rounds(self, linear: StoredLinear) -> bool:
        """Return True if the weights of a linear layer stay quantized and its inputs are rounded to
        int8."""
        own = self.of_experts if linear.is_of_experts else self
        if linear.form is None or not own.hold(linear.form, linear.in_features):
            return False
        return linear.form.rounds_inputs(self.activations, own.kernels)

    @property
    def of_experts(self) -> "HeldCodes":
        """The same for the experts of MoE layers."""
        return replace(self, kernels=self.kernels.of_experts)


NO_QUANTIZED = HeldCodes(NO_TENSORS, CodeKernels.NONE, "float32")


class Part:
    """Base class of the parts of a network that have parameters.

    A subclass declares its parameters; the check of a checkpoint, byte counts and random weights
    follow from them.
    """

    __slots__ = ()

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> "tuple[Parameter, ...]":
        """Return the tensors to read from a checkpoint that has the tensors `stored`."""
        raise NotImplementedError

    @property
    def num_weights(self) -> int:
        """Number of values of all weights, whatever their format."""
        return sum(each.num_weights for each in self.parameters())

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of the weights in a model dtype of `dtype_bytes` a number."""
        return sum(each.num_bytes(dtype_bytes) for each in self.parameters())

    def held_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes in memory where the weights in `codes` stay quantized."""
        return self.num_bytes(dtype_bytes)

    def linears(self, stored: StoredTensors) -> "tuple[StoredLinear, ...]":
        """Return the linear layers of a checkpoint that has the tensors `stored`."""
        return ()


@dataclass(frozen=True, slots=True)
class Parameter(Part):
    """A tensor that a model reads, by its name in the checkpoint.

    `order`: row order of its first axis in the kernels. `dtypes`: accepted dtypes in the
    checkpoint, in the names of safetensors. `in_float32`: held in float32 whatever the model's
    dtype.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    order: RowOrder | None = None
    dtypes: tuple[str, ...] = FLOATS
    in_float32: bool = False

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> "tuple[Parameter, ...]":
        """Return the parameter itself."""
        return (self,)

    @property
    def num_weights(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of the values in a model dtype of `dtype_bytes` a number."""
        return self.num_weights * (4 if self.in_float32 else dtype_bytes)


@dataclass(frozen=True, slots=True)
class GroupedParts:
    """Row order of a projection whose parts alternate in groups.

    `sizes` are the rows of each part in a group. Kernels read all rows of a part in one piece,
    group by group, with the parts in `order`.
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]

    def rows(self, num_rows: int) -> list[int]:
        """Return the row indices with each part in one piece."""
        starts, size = [0, *accumulate(self.sizes)], sum(self.sizes)
        return [
            group + starts[part] + row
            for part in self.order
            for group in range(0, num_rows, size)
            for row in range(self.sizes[part])
        ]


@dataclass(frozen=True, slots=True)
class InterleavedRotary:
    """Row order of a projection whose heads rotate elements 0 and 1, 2 and 3, … as pairs.

    Kernels rotate elements i and i + rotary_dim / 2. Scores are sums over the elements of a head,
    so queries and keys may have any common order.
    """

    head_dim: int
    rotary_dim: int

    def rows(self, num_rows: int) -> list[int]:
        """Return the row indices with pairs rotary_dim / 2 apart."""
        first, second = range(0, self.rotary_dim, 2), range(1, self.rotary_dim, 2)
        order = [*first, *second, *range(self.rotary_dim, self.head_dim)]
        return [head + row for head in range(0, num_rows, self.head_dim) for row in order]


HEAD = "lm_head"
_MODEL, _HEAD = "model.", f"{HEAD}."


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Prefixes of a checkpoint for `model.` and `lm_head.`."""

    model: str = _MODEL
    head: str = _HEAD

    def of(self, name: str) -> str:
        """Return the name in the checkpoint of our tensor `name`."""
        for ours, theirs in ((_MODEL, self.model), (_HEAD, self.head)):
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
        return name


@dataclass(frozen=True, slots=True)
class NamedTensors:
    """Naming schemes of checkpoints, tried in order, and prefixes of tensors to ignore.

    `dropped`: prefixes of parts that a decoder does not have, such as a vision tower.
    """

    layouts: tuple[TensorNames, ...] = (TensorNames(),)
    dropped: tuple[str, ...] = ()

    def layout(self, name: str, names: Collection[str]) -> TensorNames:
        """Return the first layout in which a checkpoint with `names` has our tensor `name`."""
        for layout in self.layouts:
            if layout.of(name) in names:
                return layout
        return self.layouts[0]


# Multi-token prediction heads.
_MTP = "mtp."
PLAIN_TENSORS = NamedTensors()
MTP_TENSORS = NamedTensors(dropped=(_MTP,))
# Models with vision or audio: names of older checkpoints, then those of transformers 5.
MULTIMODAL_TENSORS = NamedTensors(
    (
        TensorNames("language_model.model.", "language_model.lm_head."),
        TensorNames("model.language_model."),
    ),
    dropped=(
        "model.visual.",
        "visual.",
        "vision_tower.",
        "model.vision_tower.",
        _MTP,
        "multi_modal_projector.",
        "model.multi_modal_projector.",
        "audio_tower.",
        "model.audio_tower.",
        "embed_vision.",
        "model.embed_vision.",
        "embed_audio.",
        "model.embed_audio.",
        "model.vision_embedder.",
    ),
)
