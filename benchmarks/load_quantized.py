"""Time and memory to load the weights of a quantized model, by storage format.

    python benchmarks/load_quantized.py [--layers 12] [--format awq] [--keep FOLDER]

For each format a checkpoint of random codes is written in the shape of Qwen3-8B, with as many of
its layers as asked for and a small vocabulary, and loaded twice as a run loads it, in a process of
its own each time: every matrix read, and its codes packed for the kernels of this CPU, or unpacked
to bfloat16 first where it has none for them. The second process counts: the file lies in memory
then, and kernels are compiled. Prints Markdown: seconds, of them those that packing plain numbers
took, weights a second, and what that comes to for all layers; and the most memory beside mapped
files that loading added to the process, sampled every 5 ms, as a multiple of what is held.

Memory that a virtual machine has not used yet takes its host longer to give than loading takes: the
first run after a while shows that.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, sleep

from pagedrun.kernels.environment.threads import configure, prepare_environment

prepare_environment()  # before torch is imported

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.linears.linear import PackedLinear
from pagedrun.kernels.kernel_set import processor_name
from pagedrun.paged.files.gguf import BLOCK_TYPES
from pagedrun.paged.models.checkpoint.checkpoint import ModelTensors, open_checkpoint
from pagedrun.paged.models.checkpoint.weight_source import WeightSource
from pagedrun.paged.models.decoder import Decoder
from pagedrun.paged.models.model_config import ModelConfig

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCABULARY = 4096, 12288, 32, 8, 128, 36, 1024
PROJECTIONS = {
    "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
NORMS = {
    "input_layernorm": HIDDEN,
    "post_attention_layernorm": HIDDEN,
    "self_attn.q_norm": HEAD_DIM,
    "self_attn.k_norm": HEAD_DIM,
}
WEIGHTS_PER_LAYER = sum(rows * columns for rows, columns in PROJECTIONS.values())
GROUP = 128
GGUF = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K")
CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
}
Stored = dict[str, Tensor]


def words(*shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)


def codes_of_e4m3(rows: int, columns: int) -> Tensor:
    return torch.randint(0, 0x7F, (rows, columns), dtype=torch.uint8).view(torch.float8_e4m3fn)


def scales(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.full(shape, 1e-3, dtype=dtype)


def awq(rows: int, columns: int) -> Stored:
    groups = columns // GROUP
    return {
        "qweight": words(columns, rows // 8),
        "qzeros": words(groups, rows // 8),
        "scales": scales(groups, rows),
    }


def gptq(rows: int, columns: int) -> Stored:
    groups = columns // GROUP
    return {
        "qweight": words(columns // 8, rows),
        "qzeros": torch.full((groups, rows // 8), 0x77777777, dtype=torch.int32),
        "scales": scales(groups, rows),
        "g_idx": torch.arange(columns, dtype=torch.int32) // GROUP,
    }


def gptq_scattered(rows: int, columns: int) -> Stored:
    stored = gptq(rows, columns)
    return {**stored, "g_idx": stored["g_idx"][torch.randperm(columns)].contiguous()}


def pack_quantized(rows: int, columns: int) -> Stored:
    return {
        "weight_packed": words(rows, columns // 8),
        "weight_scale": scales(rows, columns // GROUP, dtype=torch.bfloat16),
        "weight_shape": torch.tensor([rows, columns]),
    }


def int_quantized(rows: int, columns: int) -> Stored:
    codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
    return {"weight": codes, "weight_scale": scales(rows, 1, dtype=torch.float32)}


def fp8_rows(rows: int, columns: int) -> Stored:
    return {
        "weight": codes_of_e4m3(rows, columns),
        "weight_scale": scales(rows, 1, dtype=torch.float32),
    }


def fp8_blocks(rows: int, columns: int) -> Stored:
    return {
        "weight": codes_of_e4m3(rows, columns),
        "weight_scale_inv": scales(rows // GROUP, columns // GROUP, dtype=torch.float32),
    }


def plain(rows: int, columns: int) -> Stored:
    return {"weight": torch.randn(rows, columns, dtype=torch.bfloat16)}


def compressed(layout: str, **weights: object) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "type": "int", **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "quantization_status": "compressed",
    }


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True}
FORMATS: dict[str, tuple[dict[str, object] | None, Callable[[int, int], Stored]]] = {
    "bfloat16": (None, plain),
    "fp8, blocks": ({"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]}, fp8_blocks),
    "fp8, rows": ({"quant_method": "fp8"}, fp8_rows),
    "int8": (compressed("int-quantized", num_bits=8, strategy="channel"), int_quantized),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, awq),
    "gptq": (GPTQ, gptq),
    "gptq, act-order": ({**GPTQ, "desc_act": True}, gptq_scattered),
    "pack-quantized": (
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=GROUP),
        pack_quantized,
    ),
}


def write_folder(folder: Path, name: str, num_layers: int) -> Path:
    """Write a model folder whose projections are stored in a format."""
    quantization, stored = FORMATS[name]
    config: dict[str, object] = {**CONFIG, "num_hidden_layers": num_layers}
    if quantization is not None:
        config["quantization_config"] = quantization
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    outer = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, dtype=torch.bfloat16),
        "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
    }
    save_file(outer, folder / "outer.safetensors")
    # Made once: layers are alike, but each has bytes of its own in its file.
    made = {each: stored(*shape) for each, shape in PROJECTIONS.items()}
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}"
        tensors = {
            f"{prefix}.{each}.weight": torch.ones(size, dtype=torch.bfloat16)
            for each, size in NORMS.items()
        }
        for each, tensors_of in made.items():
            tensors |= {f"{prefix}.{each}.{end}": tensor for end, tensor in tensors_of.items()}
        save_file(tensors, folder / f"layer-{layer:02}.safetensors")
    return folder


def write_gguf(path: Path, kind: str, num_layers: int) -> Path:
    """Write a GGUF file whose matrices are random blocks of a kind."""
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(num_layers)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_context_length(4096)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, num_layers)

    def add(name: str, values: np.ndarray, kind: str | None = None) -> None:
        theirs = names.get_name(name, try_suffixes=(".weight",))
        assert theirs is not None
        stored = None if kind is None else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(theirs, values, raw_dtype=stored)

    add("model.embed_tokens.weight", np.ones((VOCABULARY, HIDDEN), np.float32))
    add("model.norm.weight", np.ones(HIDDEN, np.float32))
    made = {each: random_blocks(*shape, kind) for each, shape in PROJECTIONS.items()}
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}"
        for each, size in NORMS.items():
            add(f"{prefix}.{each}.weight", np.ones(size, np.float32))
        for each, blocks in made.items():
            add(f"{prefix}.{each}.weight", blocks, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(rows: int, columns: int, kind: str) -> np.ndarray:
    """Return rows of random blocks with small float16 scales."""
    block = next(each for each in BLOCK_TYPES.values() if each.name == kind)
    count = columns // block.num_weights
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (rows, count, block.num_bytes), dtype=np.uint8)
    for at in (208,) if kind == "Q6_K" else (0, 2):
        blocks[:, :, at : at + 2] = np.full(1, 1e-4, np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


class TimedBackend(CpuBackend):
    """CPU backend with the seconds of packing plain matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> PackedLinear:
        began = perf_counter()
        packed = super().pack_linear(weight, bias, row_invariant=row_invariant)
        self.seconds += perf_counter() - began
        return packed


@dataclass(frozen=True, slots=True)
class Loading:
    """Seconds of loading, of them those of packing plain matrices; bytes held and in use before."""

    seconds: float
    packing: float
    held: int
    before: int


def load(path: Path) -> Loading:
    """Load a checkpoint in this process."""
    backend = TimedBackend()
    config = ModelConfig.from_folder(path)
    began, before = perf_counter(), anonymous_bytes("self")
    with open_checkpoint(path) as checkpoint:
        tensors = ModelTensors(checkpoint, config.network)
        source = WeightSource(
            tensors.read,
            torch.bfloat16,
            torch.device("cpu"),
            backend,
            is_mapped=True,
            stored=tensors.stored,
        )
        model = Decoder(tensors.network, source, 256)
    return Loading(perf_counter() - began, backend.seconds, model.num_bytes, before)


def load_elsewhere(path: Path) -> tuple[Loading, int]:
    """Load a checkpoint in a process of its own; return the most memory that it took, too."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--load", str(path)], stdout=subprocess.PIPE, text=True
    )
    most = 0
    while process.poll() is None:
        most = max(most, anonymous_bytes(process.pid))
        sleep(0.005)
    assert process.stdout is not None
    assert process.returncode == 0
    return Loading(**json.loads(process.stdout.read())), most


def anonymous_bytes(process: int | str) -> int:
    """Return the memory of a process beside mapped files, 0 once it has ended."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    sizes = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
    return 1024 * sum(map(int, sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12, help="of 36; 0.4 GB each in memory")
    parser.add_argument("--format", action="append", choices=[*FORMATS, *GGUF])
    parser.add_argument("--keep", type=Path, help="where checkpoints are, or are written and kept")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    configure()
    if given.load is not None:
        print(json.dumps(asdict(load(given.load))))
        return
    torch.manual_seed(0)
    print(f"{processor_name()}, {torch.get_num_threads()} threads, torch {torch.__version__};")
    print(f"{given.layers} of {LAYERS} layers, {given.layers * WEIGHTS_PER_LAYER:,} weights\n")
    columns = "seconds | packing | weights/s, 10^9 | held, GB | most memory | all layers, seconds"
    print(f"| format | {columns} |")
    print("| :-- | --: | --: | --: | --: | --: | --: |")
    root = given.keep or Path(tempfile.mkdtemp())
    try:
        for name in given.format or [*FORMATS, *GGUF]:
            path = root / f"{name.replace(', ', '-')}{'.gguf' if name in GGUF else ''}"
            if not path.exists():
                make = write_gguf if name in GGUF else write_folder
                make(path, name, given.layers)
            load_elsewhere(path)
            found, most = load_elsewhere(path)
            rate = given.layers * WEIGHTS_PER_LAYER / found.seconds
            print(
                f"| {name} | {found.seconds:.2f} | {found.packing:.2f} | {rate / 1e9:.2f} | "
                f"{found.held / 1e9:.2f} | {(most - found.before) / found.held:.2f} | "
                f"{found.seconds * LAYERS / given.layers:.1f} |",
                flush=True,
            )
            if given.keep is None:
                path.unlink() if path.is_file() else shutil.rmtree(path)
    finally:
        if given.keep is None:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
