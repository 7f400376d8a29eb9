"""Checkpoints with MXFP4 experts."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.families import save_tiny

# Of each code; the four bits are sign, exponent, exponent, mantissa.
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def packed(codes: Tensor) -> Tensor:
    """Return codes [.., columns] as blocks [.., columns / 32, 16], the first in the low half."""
    low, high = codes[..., 0::2], codes[..., 1::2]
    return torch.unflatten(low | high << 4, -1, (-1, 16)).to(torch.uint8)


def random_experts(shape: tuple[int, ...], exponents: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return codes and scales of matrices [num_experts, rows, columns]."""
    scales = torch.randint(*exponents, (*shape[:-1], shape[-1] // 32), dtype=torch.uint8)
    return torch.randint(16, shape), scales


def weights_of(codes: Tensor, scales: Tensor) -> Tensor:
    """Return what codes and scales mean, in float64."""
    powers = 2.0 ** (scales.double() - 127)
    return VALUES.double()[codes] * powers.repeat_interleave(32, dim=-1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small gpt-oss whose experts are in MXFP4, and the same with the weights that they mean."""
    root = tmp_path_factory.mktemp("mxfp4")
    save_tiny("gpt_oss", root / "plain")
    shutil.copytree(root / "plain", root / "mxfp4")
    plain, quantized = (load_file(root / each / "model.safetensors") for each in ("plain", "mxfp4"))
    torch.manual_seed(1)
    for name in [each for each in plain if each.endswith(("gate_up_proj", "down_proj"))]:
        codes, scales = random_experts(tuple(plain[name].mT.shape), (121, 124))
        plain[name] = weights_of(codes, scales).float().mT.contiguous()
        del quantized[name]
        quantized |= {f"{name}_blocks": packed(codes), f"{name}_scales": scales}
    for each, tensors in (("plain", plain), ("mxfp4", quantized)):
        save_file(tensors, root / each / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((root / "mxfp4" / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
    }
    (root / "mxfp4" / "config.json").write_text(json.dumps(config))
    return {each: root / each for each in ("plain", "mxfp4")}
