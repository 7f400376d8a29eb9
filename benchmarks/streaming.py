"""Streamed weights against resident ones, and against Accelerate's disk offload.

    python benchmarks/streaming.py --shape qwen3-1.7b [--weights-memory 1GiB] [--turns 3]
    python benchmarks/streaming.py --shape qwen3-1.7b --offload [--python OTHER/bin/python]

Random weights of the shape are written to a folder (`--keep` one), which is loaded twice: with all
weights in memory, and with `--weights-memory` of them. Both score 128 prompts of 64 tokens and
decode 8 tokens of 128 rows, in turns that change places; tokens and log-probabilities must be
equal. Prints Markdown: seconds, their ratio, bytes read, and the share of the time spent waiting
for the disk.

`--offload` compares 32 rows of 64 and 8 tokens with Transformers under Accelerate's `device_map`
instead, with the same memory for weights and the page cache dropped before each (which needs root;
without it, figures are of a warm cache). `--python` has both packages.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from pagedrun.kernels.environment.threads import configure, prepare_environment

prepare_environment()  # before torch is imported

import torch

from benchmarks.peers.saved_model import save_folder
from pagedrun.paged.bench.workload import BenchModel
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.models.model_config import describe_model
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

GIB = 2**30
SCORED = SamplingParams(max_tokens=1, prompt_logprobs=0, ignore_eos=True)
OFFLOADED = """
import json, sys, time, torch, transformers
folder, offload, gib, rows = sys.argv[1:]
torch.set_num_threads({threads})
prompts = torch.tensor(json.load(open(rows)))
model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.bfloat16, device_map="auto", max_memory={{"cpu": f"{{gib}}GiB"}},
    offload_folder=offload,
)
began = time.perf_counter()
model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=8,
               min_new_tokens=8, do_sample=False)
print(time.perf_counter() - began)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen3-1.7b")
    parser.add_argument("--weights-memory", type=float, default=1.0, help="GiB")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder of the weights and their packed form")
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    configure()
    with tempfile.TemporaryDirectory() as temporary:
        kept = args.keep or Path(temporary)
        kept.mkdir(exist_ok=True)
        model = BenchModel.from_shape(args.shape, None)
        folder = kept / args.shape
        if not folder.exists():
            save_folder(model, torch.bfloat16, folder)
        memory = int(args.weights_memory * GIB)
        engines = Engines(folder, model, kept / "packed", memory)
        if args.offload:
            offload(engines, folder, args.python, args.weights_memory)
        else:
            in_turns(engines, args.turns)


class Engines:
    """The model of a folder, with all weights in memory or `memory` bytes of them."""

    def __init__(self, folder: Path, model: BenchModel, packed: Path, memory: int) -> None:
        self._config = EngineConfig.fitting(model=folder, device="cpu", packed_dir=packed)
        self._shape = describe_model(folder, "auto")
        self._tokenizer = model.tokenizer()
        self._memory = memory

    def load(self, *, streams: bool) -> Engine:
        config = self._config
        if streams:
            config = replace(config, weights_memory=self._memory)
        engine = Engine(config, LoadedModel.load(config, self._shape, self._tokenizer))
        engine.warm_up()
        return engine


def requests(count: int, length: int, params: SamplingParams) -> list[Request]:
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 1000, (count, length), generator=generator).tolist()
    return [Request(index, tuple(prompt), params) for index, prompt in enumerate(prompts)]


def run(engine: Engine, asked: Sequence[Request]) -> tuple[float, list[Any], dict[str, Any]]:
    """Return seconds, answers in order, and what the report says of weights."""
    running = engine.start(asked)
    began = time.perf_counter()
    done = sorted(running, key=lambda each: each.request.index)
    seconds = time.perf_counter() - began
    answers = [(each.outputs, each.prompt_logprobs) for each in done]
    return seconds, answers, dict(running.report()["weights"])


def in_turns(engines: Engines, num_turns: int) -> None:
    decoded = SamplingParams(max_tokens=8, ignore_eos=True)
    work = {
        "score 128 x 64": requests(128, 64, SCORED),
        "decode 128 x 8": requests(128, 4, decoded),
    }
    both = {streams: engines.load(streams=streams) for streams in (False, True)}
    streamed = both[True].loaded.model.streamed
    assert streamed is not None, "all weights fit: give less memory"
    print(json.dumps({"speeds": vars_of(streamed.speeds), "pass": streamed.residency.pass_bytes}))
    print("\n| work | resident, s | streamed, s | ratio | GB read | waiting |")
    print("| :-- | --: | --: | --: | --: | --: |")
    for turn in range(num_turns):
        for name, asked in work.items():
            order = (False, True) if turn % 2 == 0 else (True, False)
            results = {streams: run(both[streams], asked) for streams in order}
            (resident_s, expected, _), (streamed_s, found, report) = results[False], results[True]
            assert found == expected, "streaming changed a byte"
            cells = (
                name,
                f"{resident_s:.1f}",
                f"{streamed_s:.1f}",
                f"{resident_s / streamed_s:.2f}",
                f"{report['bytes_read'] / 1e9:.1f}",
                f"{report['wait_share']:.1%}",
            )
            print(f"| {' | '.join(cells)} |", flush=True)


def vars_of(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def offload(engines: Engines, folder: Path, python: str, gib: float) -> None:
    asked = requests(32, 64, SamplingParams(max_tokens=8, ignore_eos=True))
    engine = engines.load(streams=True)
    is_cold = drop_caches()
    ours, _, _ = run(engine, asked)
    with tempfile.TemporaryDirectory() as temporary:
        rows = Path(temporary, "rows.json")
        rows.write_text(json.dumps([each.prompt_token_ids for each in asked]))
        drop_caches()
        code = OFFLOADED.format(threads=torch.get_num_threads())
        command = [python, "-c", code, str(folder), f"{temporary}/offload", str(gib), str(rows)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        theirs = float(done.stdout.split()[-1])
    cache = "cold" if is_cold else "warm"
    times = f"pagedrun {ours:.1f} s | Accelerate {theirs:.1f} s | {theirs / ours:.1f}"
    print(f"| 32 x (64 + 8), {cache} page cache | {times} |")


def drop_caches() -> bool:
    """Drop the page cache; return whether this was allowed."""
    subprocess.run(["sync"], check=True)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
