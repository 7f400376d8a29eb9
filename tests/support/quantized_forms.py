"""Forms of quantized checkpoints: a quantization_config, and a writer of the tensors."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.quantized_form import CodeKernels
from pagedrun.paged.models.checkpoint.checkpoint import ModelTensors, open_checkpoint
from pagedrun.paged.models.checkpoint.weight_source import WeightSource
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.linear import ExpertsSpec
from tests.support.eight_bit_writers import blocks, shaped
from tests.support.four_bit_writers import BitsAndBytesWriter, Nvfp4Writer, mxfp4, scb
from tests.support.low_bit_writers import Form, awq, compressed, float8, gptq, int8, pack
from tests.support.quantized_checkpoints import Writer, plain

SCALE = "weight_scale"
LAYER = "model.layers.0.mlp.up_proj"
EXPERTS = "model.layers.0.mlp.experts"
# 64, 32 and 96 rows and columns: groups of 40 leave a smaller one.
PACKED: dict[str, Form] = {
    "awq": awq(32),
    "awq, one group": awq(0),
    "gptq": gptq(4, 32),
    "gptq, second version": gptq(4, 32, "gptq_v2", less_one=False),
    "gptq, wrong label": gptq(4, 32, "gptq", less_one=False),
    "gptq, asymmetric": gptq(4, 32, symmetric=False),
    "gptq, asymmetric, second version": gptq(4, 32, "gptq_v2", symmetric=False, less_one=False),
    "gptq, scattered groups": gptq(4, 32, symmetric=False, shuffled=True),
    "gptq without groups' places": gptq(4, 40, has_groups=False),
    "gptq, one group": gptq(4, 0),
    "gptq, eight bits": gptq(8, 32, symmetric=False),
    "gptq, two bits": gptq(2, 32),
    "packed": pack(4, 32),
    "packed, asymmetric": pack(4, 32, symmetric=False),
    "packed, smaller last group": pack(4, 40, symmetric=False),
    "packed, rows": pack(4, 0),
    "packed, eight bits": pack(8, 32),
    "packed, scattered groups": pack(4, 32, shuffled=True),
    "int8, rows": (int8("channel"), blocks(1, 0, torch.int8, SCALE)),
    "int8, groups": (int8("group", group_size=32), blocks(1, 32, torch.int8, SCALE)),
    "float8, rows": (float8("channel"), blocks(1, 0, name=SCALE)),
    "float8, blocks": (float8("block", block_structure=[24, 40]), blocks(24, 40, name=SCALE)),
}
E8M0 = torch.float8_e8m0fnu
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [24, 40]}
PLAIN = {"quant_method": "fp8", "activation_scheme": "static"}
# 64, 32 and 96 rows and columns: the last block is smaller in both directions.
FP8: dict[str, Form] = {
    "fp8, blocks": (BLOCKS, blocks(24, 40)),
    "fp8, blocks, bfloat16": (BLOCKS, blocks(24, 40, scale_dtype=torch.bfloat16)),
    "fp8, blocks, powers of two": (BLOCKS, blocks(24, 40, scale_dtype=E8M0)),
    "fp8, rows": (PLAIN, blocks(1, 0, name=SCALE)),
    "fp8, rows, flat": (PLAIN, shaped(blocks(1, 0, name=SCALE), SCALE, -1)),
    "fp8, whole": (PLAIN, shaped(blocks(0, 0), "weight_scale_inv")),
    "fp8, whole, of one number": (PLAIN, shaped(blocks(0, 0, name=SCALE), SCALE, 1)),
    "fp8, of another name": ({"quant_method": "fbgemm_fp8"}, blocks(1, 0, name=SCALE)),
}
FOUR = {"num_bits": 4, "type": "float", "symmetric": True}
NVFP4 = compressed("nvfp4-pack-quantized", {**FOUR, "strategy": "tensor_group", "group_size": 16})
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
TABLES: dict[str, Form] = {
    "nvfp4": (NVFP4, Nvfp4Writer()),
    "nvfp4, modelopt": (MODELOPT, Nvfp4Writer(modelopt=True)),
    "fp8, modelopt": (
        {**MODELOPT, "quant_algo": "FP8"},
        shaped(blocks(0, 0, name="weight_scale"), "weight_scale"),
    ),
    "mxfp4": (
        compressed("mxfp4-pack-quantized", {**FOUR, "strategy": "group", "group_size": 32}),
        mxfp4,
    ),
    "nf4": (BNB, BitsAndBytesWriter()),
    "nf4, nested": (BNB, BitsAndBytesWriter(nested=True, size=32)),
    "fp4": (BNB, BitsAndBytesWriter("fp4")),
    # 64 and 32 or 96 rows and columns: a block is of several rows, and the last is smaller.
    "nf4, large blocks": (BNB, BitsAndBytesWriter(size=4096)),
    "bitsandbytes, int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, scb),
}
# 64 and 32 or 96 rows and columns.
EXPERT_FORMS: dict[str, Form] = {
    "fp8, blocks": (BLOCKS, blocks(24, 40)),
    "fp8, rows": (float8("channel"), blocks(1, 0, name="weight_scale")),
    "int8": (int8("channel"), blocks(1, 0, torch.int8, "weight_scale")),
    "awq": awq(32),
    "gptq": gptq(4, 32, symmetric=False, shuffled=True),
    "packed": pack(4, 32, symmetric=False),
}
# Beside them the share of 16 bits a weight that kernels of quantized weights hold.
HELD: dict[str, tuple[dict[str, Any], Writer, float]] = {
    "awq": (*awq(32), 0.34),
    "gptq": (*gptq(4, 32), 0.32),
    "gptq in any order": ({**gptq(4, 32)[0], "desc_act": True}, gptq(4, 32, shuffled=True)[1], 1.0),
    "pack-quantized": (*pack(4, 32, symmetric=False), 0.34),
    "fp8": ({**BLOCKS, "weight_block_size": [24, 32]}, blocks(24, 32), 0.57),
    "int-quantized": (int8("channel"), blocks(1, 0, torch.int8, SCALE), 0.57),
}


def experts(folder: Path) -> list[tuple[Tensor, ...]]:
    """Return gates, ups and downs of all layers as the program computes with them."""
    with open_checkpoint(folder) as checkpoint:
        tensors = ModelTensors(checkpoint, ModelConfig.from_folder(folder).network)
        backend = CpuBackend()
        backend.code_kernels = CodeKernels.NONE
        source = WeightSource(
            tensors.read,
            torch.float32,
            torch.device("cpu"),
            backend,
            stored=tensors.stored,
        )
        parts = [part for layer in tensors.network.layers for part in layer.parts]
        loaded = [part.load(source) for part in parts if isinstance(part, ExpertsSpec)]
        return [tuple(torch.stack(plain(x)) for x in (e.gate, e.up, e.down)) for e in loaded]
