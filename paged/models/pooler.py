"""Pooler with its weights: vectors and scores of texts from hidden states of tokens.

Poolings add in float64, token by token, on the device that has the hidden states, and steps are
row-invariant products in float32, so that the bytes of a text's result depend on its own tokens
alone.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.array_types import Float64s, Int64s
from pagedrun.kernels.ops import Backend
from pagedrun.paged.models.checkpoint.checkpoint import BaseCheckpoint, Checkpoint
from pagedrun.paged.models.pooler_steps import (
    Activation,
    DenseStep,
    LogitStep,
    NormStep,
    PoolerSpec,
    Step,
    TokenStep,
    UnitStep,
)
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.pooling import Pooling

Rows = NDArray[np.float32]
_Apply = Callable[[Rows], Rows]
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


class Pooler:
    """Pooler of a model folder. hidden_size: of the hidden states; `num_bytes`: of the weights."""

    def __init__(
        self,
        spec: PoolerSpec,
        folder: Path,
        checkpoint: BaseCheckpoint,
        hidden_size: int,
        kernels: Backend,
        device: torch.device,
    ) -> None:
        self.spec = spec
        self.num_bytes = 0
        self._kernels, self._device = kernels, device
        self._steps: list[_Apply] = []
        self._folder = folder
        size = hidden_size * len(spec.poolings)
        for step in spec.steps:
            apply, size = self._loaded(step, checkpoint, size)
            self._steps.append(apply)
        if spec.labels and size != len(spec.labels):
            raise ModelError(f"{folder}: the head has {size} outputs and {len(spec.labels)} labels")
        self.size = 1 if spec.scores == "softmax" and not spec.labels else size
        if spec.dimensions is not None and spec.dimensions < size:
            self.size = spec.dimensions

    def rows_of(self, starts: Int64s, skipped: Int64s | None = None) -> Int64s:
        """Return the tokens of a batch whose hidden states are read, [num_rows] int64.

        starts: [num_texts + 1] int64, offsets of the texts. skipped: [num_texts] int64, tokens at
        the beginning of each that poolings leave out; None: none of any.
        """
        if self.spec.reads_all_tokens:
            return np.arange(starts[-1])
        firsts = starts[:-1] if skipped is None else starts[:-1] + skipped
        places = [firsts if each is Pooling.CLS else starts[1:] - 1 for each in self.spec.poolings]
        return np.concatenate(places)

    def __call__(self, hidden: Tensor, starts: Int64s, skipped: Int64s | None = None) -> Rows:
        """Return the vectors or scores of texts, [num_texts, size].

        hidden: [num_rows, hidden_size], those of `rows_of(starts, skipped)`.
        """
        num_texts = len(starts) - 1
        if not self.spec.reads_all_tokens:
            parts = np.split(_host_rows(hidden), len(self.spec.poolings))
        else:
            parts = [pooled(each, hidden, starts, skipped) for each in self.spec.poolings]
        rows = np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
        assert len(rows) == num_texts
        for apply in self._steps:
            rows = apply(np.ascontiguousarray(rows))
        return self.finished(rows)

    def finished(self, rows: Rows) -> Rows:
        """Return the rows cut, normalized or as probabilities."""
        spec = self.spec
        if spec.scores == "vector":
            rows = rows if spec.dimensions is None else rows[:, : spec.dimensions]
            return normalized(rows) if spec.normalizes else np.ascontiguousarray(rows)
        if spec.scores != "softmax":
            return self._activated(rows, spec.scores)
        wide = rows.astype(np.float64)
        wide = np.exp(wide - wide.max(axis=1, keepdims=True))
        wide /= np.add.reduce(wide, axis=1, keepdims=True)
        if not spec.labels:  # of no and yes, the latter
            wide = wide[:, 1:]
        scores: Rows = wide.astype(np.float32)
        return scores

    def _loaded(self, step: Step, checkpoint: BaseCheckpoint, size: int) -> tuple[_Apply, int]:
        """Return a step with its weights, and the size of its output; size: of its input."""
        match step:
            case DenseStep():
                return self._dense(step, checkpoint, size)
            case NormStep(_, folder) if folder:
                with Checkpoint.open(self._folder / folder) as other:
                    return self._loaded(replace(step, folder=""), other, size)
            case NormStep(norm):
                if norm.size != size:
                    raise ModelError(
                        f"{self._folder}: a norm behind the pooling takes {norm.size} numbers, and "
                        f"vectors have {size}"
                    )
                weight = self._tensor(checkpoint, norm.weight.name)
                bias = None if norm.bias is None else self._tensor(checkpoint, norm.bias.name)

                def normalize(rows: Rows) -> Rows:
                    x = torch.from_numpy(rows).to(self._device)
                    return self._kernels.layer_norm(x, weight, bias, norm.eps).cpu().numpy()

                return normalize, size
            case UnitStep():
                return normalized, size
            case TokenStep(name, token_ids):
                head = self._head(checkpoint, name)[list(token_ids)].float().to(self._device)
                return self._linear(head, None, size), 2
            case LogitStep(name, token_id, less):
                ids = [token_id] if less is None else [token_id, less]
                head = self._difference(self._head(checkpoint, name)[ids])
                bias = None
                if f"{name}.bias" in checkpoint.names:
                    bias = self._difference(checkpoint.tensor(f"{name}.bias")[ids])
                return self._linear(head, bias, size), 1

    def _head(self, checkpoint: BaseCheckpoint, name: str) -> Tensor:
        """Return the weight of a head, or the embedding that it is tied to."""
        names = (f"{name}.weight", "model.embed_tokens.weight", "embed_tokens.weight")
        found = next((each for each in names if each in checkpoint.names), names[0])
        return checkpoint.tensor(found)

    def _difference(self, rows: Tensor) -> Tensor:
        """Return the first of two rows less the second, or the only one, in float32."""
        wide = rows.double()
        less = wide[1:] if len(wide) > 1 else torch.zeros_like(wide)
        return (wide[:1] - less).float().to(self._device)

    def _dense(self, step: DenseStep, checkpoint: BaseCheckpoint, size: int) -> tuple[_Apply, int]:
        if step.folder:
            with Checkpoint.open(self._folder / step.folder) as other:
                return self._dense(replace(step, folder=""), other, size)
        weight = self._tensor(checkpoint, f"{step.name}.weight")
        if step.sizes is not None and tuple(weight.shape) != step.sizes:
            raise ModelError(
                f"{checkpoint.file_of(f'{step.name}.weight')}: {step.name}.weight is "
                f"{list(weight.shape)} and must be {list(step.sizes)}, as config.json says"
            )
        name = f"{step.name}.bias"
        has_bias = name in checkpoint.names if step.has_bias is None else step.has_bias
        bias = self._tensor(checkpoint, name) if has_bias else None
        linear, num_outputs = self._linear(weight, bias, size), len(weight)
        residual = None
        if step.adds_input and num_outputs != size:
            residual = self._linear(self._tensor(checkpoint, "residual.weight"), None, size)

        def apply(rows: Rows) -> Rows:
            out = self._activated(linear(rows), step.activation)
            if not step.adds_input:
                return out
            return out + (rows if residual is None else residual(rows))

        return apply, num_outputs

    def _linear(self, weight: Tensor, bias: Tensor | None, size: int) -> _Apply:
        """Return a linear layer for vectors of `size` numbers; `ModelError` for another one."""
        if weight.shape[1] != size:
            raise ModelError(
                f"{self._folder}: a layer behind the pooling takes {weight.shape[1]} numbers, and "
                f"vectors have {size}"
            )
        linear = self._kernels.pack_linear(weight.contiguous(), bias, row_invariant=True)
        self.num_bytes += linear.num_bytes

        def apply(rows: Rows) -> Rows:
            numbers: Rows = linear(torch.from_numpy(rows).to(self._device)).cpu().numpy()
            return numbers

        return apply

    def _activated(self, rows: Rows, name: Activation) -> Rows:
        """Return a function of each number, computed in float64; GELU by the device's kernel."""
        if name in ("identity", "gelu"):
            if name == "identity":
                return rows
            out: Rows = self._kernels.gelu(torch.from_numpy(rows).to(self._device)).cpu().numpy()
            return out
        with np.errstate(over="ignore"):  # infinite powers are the limits of these functions
            return _FUNCTIONS[name](rows.astype(np.float64)).astype(np.float32)

    def _tensor(self, checkpoint: BaseCheckpoint, name: str) -> Tensor:
        """Return a tensor in float32 on the device.

        Raises `ModelError` if it is missing, or has a number that is not finite.
        """
        found = checkpoint.tensor(name).float()
        if not bool(torch.isfinite(found).all()):
            raise ModelError(
                f"{checkpoint.file_of(name)}: {name} contains NaN or infinity; download the model "
                "again"
            )
        return found.to(self._device)


def _elu(x: Float64s, alpha: float = 1.0) -> Float64s:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


# Those of torch.nn without arguments, but GELU.
_FUNCTIONS: dict[str, Callable[[Float64s], Float64s]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "elu": _elu,
    "selu": lambda x: _SELU_SCALE * _elu(x, _SELU_ALPHA),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "softplus": lambda x: np.logaddexp(0, x),
    "softsign": lambda x: x / (1.0 + np.abs(x)),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
}


def normalized(rows: Rows) -> Rows:
    """Return rows scaled to length 1; a row of zeros stays."""
    wide = rows.astype(np.float64)
    lengths = np.sqrt(np.add.reduce(wide * wide, axis=1, keepdims=True))
    return (wide / np.maximum(lengths, 1e-12)).astype(np.float32)


def pooled(pooling: Pooling, states: Tensor, starts: Int64s, skipped: Int64s | None = None) -> Rows:
    """Return one vector for each text, [num_texts, hidden_size].

    states: [num_tokens, hidden_size] hidden states of any dtype. starts: offsets of the texts.
    skipped: tokens at the beginning of each text that are left out, as by sentence-transformers'
    `include_prompt`: those behind them keep their weights.
    """
    lengths, firsts = np.diff(starts), np.ones(len(starts) - 1, np.int64)
    if skipped is not None and skipped.any():
        kept = np.arange(starts[-1]) >= np.repeat(starts[:-1] + skipped, lengths)
        states = states[torch.from_numpy(kept).to(states.device)]
        lengths = lengths - skipped
        starts, firsts = np.concatenate(([0], np.cumsum(lengths))), skipped + 1
    match pooling:
        case Pooling.CLS:
            return _host_rows(states[starts[:-1]])
        case Pooling.LAST:
            return _host_rows(states[starts[1:] - 1])
        case Pooling.MAX:
            largest = torch.segment_reduce(
                states.float(),
                "max",
                lengths=torch.from_numpy(lengths).to(states.device),
                axis=0,
                unsafe=True,
            )
            return _host_rows(largest)
    weights, divisors = None, lengths.astype(np.float64)
    if pooling is Pooling.WEIGHTED_MEAN:
        weights = np.arange(float(starts[-1])) + np.repeat(firsts - starts[:-1], lengths)
        divisors = divisors * (2 * firsts + lengths - 1) / 2
    elif pooling is Pooling.MEAN_SQRT_LEN:
        divisors = np.sqrt(divisors)
    add = host_sums if states.is_cpu else device_sums
    return (add(states, weights, starts) / divisors[:, None]).astype(np.float32)


def host_sums(states: Tensor, weights: Float64s | None, starts: Int64s) -> Float64s:
    """Return the sum of the states of each text, times their weights, [num_texts, hidden_size].

    weights: [num_tokens], or None for 1 each. On a CPU torch takes six times as long.
    """
    rows = _host_rows(states)
    sums = np.empty((len(starts) - 1, rows.shape[1]))
    for text, (start, end) in enumerate(itertools.pairwise(starts.tolist())):
        wide = rows[start:end].astype(np.float64)
        if weights is not None:
            wide *= weights[start:end, None]
        np.add.reduce(wide, axis=0, out=sums[text])
    return sums


def device_sums(states: Tensor, weights: Float64s | None, starts: Int64s) -> Float64s:
    """Return the bytes of `host_sums`, without the states on the host."""
    wide = states.double()
    if weights is not None:
        wide *= torch.from_numpy(weights).to(states.device)[:, None]
    lengths = torch.from_numpy(np.diff(starts)).to(states.device)
    sums: Float64s = (
        torch.segment_reduce(wide, "sum", lengths=lengths, axis=0, unsafe=True).cpu().numpy()
    )
    return sums


def _host_rows(rows: Tensor) -> Rows:
    numbers: Rows = rows.float().cpu().numpy()
    return numbers
