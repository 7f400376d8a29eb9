"""Embeddings of tokens, positions and token types, and the per-layer inputs of Gemma.

Descriptions; `embedding_layer` computes them.
"""

from dataclasses import dataclass, replace

from pagedrun.kernels.quantized_form import BLOCK_FORMS, CodeForm
from pagedrun.paged.files.gguf import PACKED_TYPES
from pagedrun.paged.models.checkpoint.tensors import (
    NO_TENSORS,
    HeldCodes,
    Parameter,
    Part,
    Role,
    StoredLinear,
    StoredTensors,
)
from pagedrun.paged.models.modules.linear import LinearSpec
from pagedrun.paged.models.modules.mlp import Activation
from pagedrun.paged.models.modules.norm import LayerNormSpec, NormSpec


@dataclass(frozen=True, slots=True)
class EmbeddingSpec(Part):
    """Description of an embedding of `vocab_size` tokens in vectors of `hidden_size`.

    The input of the first layer is multiplied by `scale`, rounded to the model's dtype.
    """

    name: str
    vocab_size: int
    hidden_size: int
    scale: float = 1.0

    @property
    def weight(self) -> Parameter:
        """Table, [vocab_size, hidden_size]."""
        return Parameter(f"{self.name}.weight", (self.vocab_size, self.hidden_size), Role.MATRIX)

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
        """Return the table, quantized in blocks in some GGUF files."""
        tensor = stored.get(self.weight.name)
        if tensor is None or tensor.dtype not in PACKED_TYPES:
            return (self.weight,)
        return (replace(self.weight, role=Role.QUANTIZED, dtypes=(tensor.dtype,)),)

    def held_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the table in memory; blocks in `codes` stay quantized."""
        tensor, form = codes.get(self.weight.name), self._form(codes)
        return self.num_bytes(dtype_bytes) if tensor is None or form is None else tensor.num_bytes

    def packed_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the table as the matrix of a head."""
        form = self._form(codes)
        if form is None:
            return self.num_bytes(dtype_bytes)
        return form.num_bytes(self.vocab_size, self.hidden_size)

    def holds_codes(self, codes: HeldCodes) -> bool:
        """Return True if the table stays quantized."""
        return self._form(codes) is not None

    def tied_head(self, stored: StoredTensors) -> StoredLinear:
        """Return the table as the linear layer of a head."""
        tensor = stored.get(self.weight.name)
        form = None if tensor is None else BLOCK_FORMS.get(tensor.dtype)
        return StoredLinear(self.hidden_size, form)

    def _form(self, codes: HeldCodes) -> CodeForm | None:
        """Return the format of blocks that stay quantized, else None."""
        head = self.tied_head(codes)
        return head.form if codes.holds(head) else None


@dataclass(frozen=True, slots=True)
class EncoderEmbeddingSpec(EmbeddingSpec):
    """Embedding of an encoder: the normalized sum of the vectors of token, position and type.

    norm: behind the sum. positions: table, [num_positions, table_size], whose row of position 0 is
    `first_position`; None for an encoder that rotates. types: table of token types, None without.
    projection: behind the norm, from tables of `table_size` columns to hidden_size; None: they have
    hidden_size.
    """

    norm: LayerNormSpec | None = None
    positions: Parameter | None = None
    types: Parameter | None = None
    first_position: int = 0
    projection: LinearSpec | None = None

    @property
    def table_size(self) -> int:
        """Columns of the tables."""
        return self.hidden_size if self.projection is None else self.projection.in_features

    @property
    def weight(self) -> Parameter:
        """Table of tokens, [vocab_size, table_size]."""
        return Parameter(f"{self.name}.weight", (self.vocab_size, self.table_size), Role.MATRIX)

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
        """Return the tables, and the parameters of norm and projection."""
        tables = tuple(each for each in (self.positions, self.types) if each is not None)
        others = tuple(each for each in (self.norm, self.projection) if each is not None)
        return self.weight, *tables, *(one for each in others for one in each.parameters(stored))


@dataclass(frozen=True, slots=True)
class LayerInputsSpec:
    """Per-layer inputs: `size` numbers a token and layer, computed before the first layer.

    `embedding` has the vectors of all layers side by side. `projection` maps the input of the first
    layer to as many numbers, multiplied by `projection_scale` and normalized for each layer by
    `norm`. The inputs are the sum of both, times `scale`.
    """

    num_layers: int
    size: int
    embedding: EmbeddingSpec
    projection: LinearSpec
    projection_scale: float
    norm: NormSpec
    scale: float = 0.5**0.5

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        return self.embedding, self.projection, self.norm

    @property
    def width(self) -> int:
        """Peak numbers of activation of a token: embedding, projection and their sum."""
        return 3 * self.num_layers * self.size


@dataclass(frozen=True, slots=True)
class InputGateSpec:
    """Addition of a per-layer input to the residual stream, behind the feed-forward part.

    `out_norm(out(activation(gate(residual)) * input))`.
    """

    activation: Activation
    gate: LinearSpec
    out: LinearSpec
    out_norm: NormSpec

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        return self.gate, self.out, self.out_norm
