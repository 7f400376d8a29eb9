"""The parts: what there is to measure on a GPU, and the same in small on a CPU."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.on_gpu.step import Step

# As nano-vLLM's benchmark has it, nothing shared; and what pagedrun is for.
UNSHARED = "--rows 256 --shared 0 --unique 100:1024 --output 100:1024 --max-model-len 2048"
SHARED = "--rows 1024 --shared 4096 --unique 128 --output 128 --max-model-len 4352"
# Rows that finish and are admitted all the time, eight times as many as seats.
STEADY = "--rows 8192 --shared 0 --unique 64:512 --output 32:256 --max-model-len 1024"
FEW = "--rows 64 --shared 512 --unique 32:96 --output 16:48 --max-model-len 1024"

SMALL_LIMIT_S = 1500.0  # of a part on a CPU, which may be busy: it is not what is tried there


@dataclass(frozen=True, slots=True)
class Part:
    """Steps that are run one after the other, for `limit_s` seconds in all."""

    limit_s: float
    steps: tuple[Step, ...]
    about: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, as a file of parts has them."""
        steps = [step.to_dict() for step in self.steps]
        return {"limit_s": self.limit_s, "steps": steps, "about": self.about}


Parts = Mapping[str, Part]


def read_parts(path: Path) -> Parts:
    """Return the parts of a JSON file, as `gpu.py --list --json` prints them."""
    return {
        name: Part(
            part["limit_s"], tuple(Step(**step) for step in part["steps"]), part.get("about", "")
        )
        for name, part in json.loads(path.read_text(encoding="utf-8")).items()
    }


def gpu_parts() -> Parts:
    """Return the parts A to E. Each is done in less than nine minutes, its start included."""
    engine = (
        "--device cuda --dtype bfloat16 --max-num-seqs 1024 --max-num-batched-tokens 16384 "
        "--block-size 64 --gpu-memory-utilization 0.9"
    )
    small, large = (
        f"bench throughput --shape {shape} {engine}" for shape in ("qwen3-0.6b", "qwen3-8b")
    )
    kernels = "bench kernels --device cuda --shape qwen3-8b --block-size 64"
    return {
        "A": Part(
            240,
            (
                Step("imports", "benchmarks/on_gpu/imports.py", "script", 0.5),
                Step("roofline", "bench kernels --device cuda --only ops --budget 15"),
                Step("the engine's tests", "-m gpu -q tests/whole/test_gpu.py", "pytest", 2.0),
                Step(
                    "graphs against eager",
                    f"{small} {FEW} --reproducible --compare enforce-eager --repeat 1",
                    alike=True,
                ),
                Step("0.6B, shared, profiled", f"{small} {SHARED} --repeat 1 --profile"),
            ),
            "imports, roofline, the engine's own tests, graphs against eager, a profile",
        ),
        "B": Part(
            480,
            (
                Step("0.6B, shared", f"{small} {SHARED} --repeat 3"),
                Step("0.6B, nothing shared", f"{small} {UNSHARED} --repeat 3"),
                Step("0.6B, steady state", f"{small} {STEADY} --repeat 1 --profile"),
                Step("0.6B, once against alone", f"{small} {SHARED} --compare alone --repeat 1"),
                Step("8B, shared", f"{large} {SHARED} --repeat 2", weight=1.5),
                Step("8B, nothing shared", f"{large} {UNSHARED} --repeat 2", weight=1.5),
                Step("8B, steady state", f"{large} {STEADY} --repeat 1 --profile", weight=2.0),
            ),
            "tokens a second of Qwen3-0.6B and 8B",
        ),
        "C": Part(
            480,
            (
                Step(
                    "decode points",
                    f"{kernels} --only decode --context 64,128,256,512 --batch 256,512,1024 "
                    "--budget 100",
                ),
                Step(
                    "prefix points",
                    f"{kernels} --only prefix --prefix 1024,4096,16384 --group 64,256,1024 "
                    "--budget 100",
                ),
                Step("prefill points", f"{kernels} --only prefill --budget 60"),
                Step(
                    "quantized weights",
                    "benchmarks/packed_linears.py --device cuda --json",
                    "script",
                ),
            ),
            "kernels by size",
        ),
        "D": Part(
            360,
            (
                Step(
                    "Transformers, continuous batching",
                    "benchmarks/on_gpu/generate_batch.py --device cuda --shape qwen3-0.6b "
                    "--rows 128 --shared 1024 --unique 64 --output 64",
                    "script",
                ),
                Step(
                    "the same rows here",
                    f"{small} --rows 128 --shared 1024 --unique 64 --output 64 --repeat 3",
                ),
                Step("attention of others", "benchmarks/on_gpu/peer_kernels.py", "script"),
            ),
            "what others do on the same rows and sizes",
        ),
        "E": Part(
            480,
            (
                Step(
                    "the other tests",
                    "benchmarks/on_gpu/spread_tests.py --marked gpu --processes 6 "
                    "--without tests/whole/test_gpu.py tests",
                    "script",
                ),
            ),
            "the other tests that a GPU can run, in parallel processes",
        ),
    }


def small_parts() -> Parts:
    """Return the same parts with steps that a CPU gets through, to see that they run at all."""
    engine = "--device cpu --dtype float32 --max-num-seqs 8 --shape tiny --block-size 16"
    throughput = f"bench throughput {engine}"
    rows = "--rows 6 --shared 32 --unique 4:12 --output 2:6"
    kernels = "bench kernels --device cpu --shape tiny --dtype float32 --repeat 1 --budget 5"
    return {
        "A": Part(
            SMALL_LIMIT_S,
            (
                Step("imports", "benchmarks/on_gpu/imports.py", "script"),
                Step(
                    "with prefixes against without",
                    f"{throughput} {rows} --compare no-prefix-caching --repeat 1",
                    alike=True,
                ),
                Step("profiled", f"{throughput} {rows} --profile"),
            ),
        ),
        "B": Part(SMALL_LIMIT_S, (Step("tiny", f"{throughput} {rows}"),)),
        "C": Part(
            SMALL_LIMIT_S,
            (Step("decode points", f"{kernels} --only decode --context 16 --batch 2"),),
        ),
        "D": Part(
            SMALL_LIMIT_S,
            (
                Step(
                    "Transformers, continuous batching",
                    "benchmarks/on_gpu/generate_batch.py --device cpu --shape tiny --rows 2 "
                    "--shared 8 --unique 4 --output 4 --dtype float32 --num-blocks 16",
                    "script",
                ),
                Step("attention of others", "benchmarks/on_gpu/peer_kernels.py", "script"),
            ),
        ),
        "E": Part(
            SMALL_LIMIT_S,
            (
                Step(
                    "two files of tests",
                    "benchmarks/on_gpu/spread_tests.py --processes 2 --marked 'not gpu' "
                    "tests/bench/test_spread.py tests/kernels/gpu/test_chip.py",
                    "script",
                ),
            ),
        ),
    }
