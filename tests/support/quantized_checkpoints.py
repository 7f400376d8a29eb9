"""Quantised copies of model folders, written from the formats' descriptions, and what they hold.

A writer rounds a matrix to the nearest codes. It returns the tensors that hold these, by the ends
of their names, and the weights that they mean, in float32.
"""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.linears.linear import PackedLinear
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.quantized_form import CodeKernels
from pagedrun.kernels.quantized_weight import PackedWeight
from pagedrun.paged.models.checkpoint.checkpoint import ModelTensors, open_checkpoint
from pagedrun.paged.models.checkpoint.weight_source import WeightSource
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.linear import LinearSpec

_PROJECTION = re.compile(r"(_proj|\.w[123])\.weight$")
Stored = tuple[dict[str, Tensor], Tensor]
Writer = Callable[[Tensor], Stored]
Change = Callable[[dict[str, Tensor]], object]


def write(
    source: Path,
    folder: Path,
    quantization: dict[str, Any],
    writer: Writer,
    *,
    keeps: str = "nothing",
    change: Change = lambda tensors: None,
) -> dict[str, Tensor]:
    """Copy a folder, its projections stored by `writer`, those with `keeps` in their names plain.

    `change` may break the tensors afterwards. Returns what the projections' weights are.
    """
    shutil.copytree(source, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    weights = {}
    for name in [each for each in tensors if _PROJECTION.search(each)]:
        layer = name.removesuffix(".weight")
        weights[layer] = tensors[name].float()
        if keeps not in name:
            stored, weights[layer] = writer(tensors.pop(name).float())
            tensors |= {f"{layer}.{end}": each.contiguous() for end, each in stored.items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return weights


def write_plain(source: Path, folder: Path, weights: dict[str, Tensor]) -> None:
    """Copy a folder with other weights of its projections."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    for layer, weight in weights.items():
        tensors[f"{layer}.weight"] = weight.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


class WeightExpansion(CpuBackend):
    """Keeps the weights that it is given to pack."""

    def __init__(self) -> None:
        super().__init__(KernelSet.PORTABLE)
        self.code_kernels = CodeKernels.NONE
        self.weights: list[Tensor] = []

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> PackedLinear:
        self.weights.append(weight)
        return super().pack_linear(weight, bias)


def read(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return the weights of the layers' projections as the program computes with them."""
    network = ModelConfig.from_folder(folder).network
    parts = [part for layer in network.layers for part in layer.parts]
    linears = [part for part in parts if isinstance(part, LinearSpec)]
    backend = WeightExpansion()
    with open_checkpoint(folder) as checkpoint:
        tensors = ModelTensors(checkpoint, network)
        cpu = torch.device("cpu")
        source = WeightSource(tensors.read, dtype, cpu, backend, stored=tensors.stored)
        for linear in linears:
            linear.load(source)
    found: dict[str, Tensor] = {}
    for linear, weight in zip(linears, backend.weights, strict=True):
        each = torch.split(weight, [part.out_features for part in linear.parts])
        found |= zip([part.name for part in linear.parts], each, strict=True)
    return found


def plain(matrices: Sequence[PackedWeight | Tensor]) -> list[Tensor]:
    """Return matrices that must all be in plain numbers."""
    tensors = [each for each in matrices if isinstance(each, Tensor)]
    assert len(tensors) == len(matrices)
    return tensors
