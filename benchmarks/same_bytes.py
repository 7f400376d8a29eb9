"""Record digests of a fixed set of runs, or compare runs with recorded digests.

    python benchmarks/same_bytes.py record before.json
    python benchmarks/same_bytes.py check before.json

The runs answer the bundled prompts with the bundled model: greedy and sampled, float32 and
bfloat16, int8 and GGUF weights, beams, log-probabilities, a schema, pools that preempt, a prefix
store filled and used, a run cut off and resumed. A mixture of experts and a model with recurrent
layers, both with random weights, answer the first of them. A digest is taken of the answers as they
lie on disk, of the report and of the snapshot, both without what a clock or the machine's free
memory decides. Digests belong to the processor that made them.

Needs the extras of `dev` (gguf, llguidance).
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "recipes" / "demo"
PROMPTS = DEMO / "prompts.jsonl"
_SAMPLED = ("--temperature", "0.8", "--top-p", "0.95", "--n", "2", "--seed", "7")
_SMALL_POOL = ("--num-blocks", "96", "--max-num-seqs", "64", "--max-num-batched-tokens", "300")
_STORE = ("--prefix-store", "store")
_FEW = ("--limit", "40", "--max-tokens", "16", "--ignore-eos")
_SCHEMA = json.dumps({"type": "object", "properties": {"room": {"type": "integer"}}})
# Runs that preempt at least this often: without it they would not show what they are for.
_PREEMPTING = {"swap": 1, "recompute": 1, "sampled-small-pool": 10}
# A run is its name and what is passed to `generate`; runs go in this order, in one folder.
RUNS: dict[str, tuple[str, ...]] = {
    "greedy": (),
    "greedy-float32": ("--dtype", "float32"),
    "sampled": _SAMPLED,
    "sampled-float32": (*_SAMPLED, "--dtype", "float32"),
    "swap": (*_SMALL_POOL, "--no-prefix-caching"),
    "recompute": (*_SMALL_POOL, "--no-prefix-caching", "--preemption-mode", "recompute"),
    "sampled-small-pool": (*_SAMPLED, *_SMALL_POOL),
    "ordered": ("--ordered", "--system", "Answer in one word.", "--max-tokens", "5"),
    "store-filled": _STORE,
    "store-used": _STORE,
    "resumed": (),
    "int8": ("--quantization", "int8"),
    "gguf": ("--model", "demo.gguf", "--tokenizer", str(DEMO)),
    "beams": ("--limit", "40", "--beam-width", "3", "--n", "2", "--max-tokens", "16"),
    "logprobs": ("--limit", "40", "--logprobs", "3", "--prompt-logprobs", "2"),
    "schema": ("--limit", "40", "--json-schema", _SCHEMA, "--max-tokens", "24"),
    "moe": ("--model", "moe", *_FEW),
    "moe-float32-sampled": ("--model", "moe", *_FEW, *_SAMPLED, "--dtype", "float32"),
    "moe-int8": ("--model", "moe", *_FEW, "--quantization", "int8"),
    "hybrid": ("--model", "hybrid", *_FEW),
    "hybrid-preempting": ("--model", "hybrid", *_FEW, *_SAMPLED, *_SMALL_POOL),
}
_KEPT_ROWS = 100  # of the run that is cut off
# Of reports: what a clock, free memory or the place of the checkout decides.
_VOLATILE = {"time", "t", "seconds", "seconds_saved", "step_costs", "hardware", "model"}
_VOLATILE |= {"activations_peak", "other", "free"}
_MEASURED_GAIN = r"up to \d+% less time"  # its weight in the order of advice is the same share
_VOLATILE_ARRAYS = {"samples.times", "facts"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["record", "check"])
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        make_models(Path(folder))
        digests = {name: digests_of(name, flags, Path(folder)) for name, flags in RUNS.items()}
    if given.action == "record":
        given.file.write_text(json.dumps(digests, indent=1) + "\n")
        return
    before = json.loads(given.file.read_text())
    changed = [
        f"{name}: {part}"
        for name, parts in digests.items()
        for part in parts
        if before[name][part] != parts[part]
    ]
    print("\n".join(changed) or f"the same bytes in all {len(digests)} runs")
    sys.exit(1 if changed else 0)


def make_models(folder: Path) -> None:
    """Write the models of the runs that do not use the bundled one."""
    sizes = {
        "vocab_size": 1024,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
    }
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    recurrent = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    }
    for name, config in {
        "moe": transformers.Qwen3MoeConfig(**sizes, **experts, decoder_sparse_step=1),
        "hybrid": transformers.Qwen3_5TextConfig(**sizes, **recurrent, intermediate_size=128),
    }.items():
        torch.manual_seed(20_261_123)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.bfloat16().save_pretrained(folder / name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name / file).write_bytes((DEMO / file).read_bytes())
    write_gguf(folder / "demo.gguf")


def write_gguf(path: Path) -> None:
    """Write the bundled model as GGUF, its matrices as Q8_0."""
    config = json.loads((DEMO / "config.json").read_text())
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.QWEN3])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    fields = json.loads((DEMO / "tokenizer.json").read_text())
    tokens = {number: text for text, number in fields["model"]["vocab"].items()}
    tokens |= {token["id"]: token["content"] for token in fields["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([tokens.get(number, f"<{number}>") for number in range(1024)])
    writer.add_eos_token_id(config["eos_token_id"])
    merges = fields["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, tensor in load_file(DEMO / "model.safetensors").items():
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ValueError(f"GGUF has no name for {name}")
        values = tensor.float().numpy()
        if values.ndim < 2:
            writer.add_tensor(found, values)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(found, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def digests_of(name: str, flags: tuple[str, ...], folder: Path) -> dict[str, str]:
    """Do one run; return the digests of its answers, report and snapshot."""
    output = folder / f"{name}.jsonl"
    if name == "resumed":
        _generate((), output, folder)
        lines = output.read_bytes().splitlines(keepends=True)
        output.write_bytes(b"".join(lines[:_KEPT_ROWS]) + lines[_KEPT_ROWS][:20])
        flags = ("--resume",)
    _generate(flags, output, folder)
    report = json.loads(Path(f"{output}.report.json").read_text())
    preemptions = sum(report["preemptions"].values())
    if preemptions < _PREEMPTING.get(name, 0):
        sys.exit(f"{name}: {preemptions} preemptions, fewer than it should show")
    with np.load(f"{output}.snapshot.npz") as arrays:
        snapshot = hashlib.sha256()
        for key in sorted(set(arrays.files) - _VOLATILE_ARRAYS):
            snapshot.update(f"{key} {arrays[key].dtype} {arrays[key].shape}".encode())
            snapshot.update(np.ascontiguousarray(arrays[key]).tobytes())
    return {
        "answers": hashlib.sha256(output.read_bytes()).hexdigest(),
        "report": hashlib.sha256(json.dumps(_stable(report)).encode()).hexdigest(),
        "snapshot": snapshot.hexdigest(),
    }


def _generate(flags: tuple[str, ...], output: Path, folder: Path) -> None:
    command = (sys.executable, "-m", "pagedrun", "generate", str(PROMPTS), "--quiet")
    subprocess.run(
        [*command, "--output", str(output), *flags],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        check=True,
    )


def _stable(value: Any) -> Any:
    """Return a report without values that depend on time or free memory, keys in order."""
    if isinstance(value, dict):
        left_out = _VOLATILE
        if re.search(_MEASURED_GAIN, str(value.get("sentence", ""))):  # advice
            value = {**value, "sentence": re.sub(_MEASURED_GAIN, "", value["sentence"])}
            left_out = _VOLATILE | {"weight"}
        return {key: _stable(value[key]) for key in sorted(value) if key not in left_out}
    if isinstance(value, list):
        return [_stable(each) for each in value]
    return value


if __name__ == "__main__":
    main()
