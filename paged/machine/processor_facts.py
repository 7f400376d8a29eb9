"""ProcessorFacts: what the processor can do, and what that means for speed and bytes."""

from typing import TypedDict

from pagedrun.kernels.kernel_set import VARIABLE, KernelSet
from pagedrun.kernels.processor import features, has_features, processor_name
from pagedrun.paged.machine.findings import Findings

# Instructions that decide how matrices are multiplied here, by LLVM's names, fastest first.
_SHOWN = ("amx-bf16", "amx-int8", "avx512bf16", "avx512vnni", "avx512f", "avx2", "neon", "sve")
_SPEED = {
    KernelSet.AMX: "bfloat16 on matrix tiles, the fastest set",
    KernelSet.AVX512_BF16: "bfloat16 in pairs for attention, oneDNN for linear layers",
    KernelSet.PORTABLE: "attention in float32, oneDNN for linear layers; the slowest set",
}


_QUANTIZED = {
    KernelSet.AMX: "in bfloat16 quantized in memory: four bits in groups of 128 are the "
    "fastest at few rows, plain bfloat16 at hundreds",
    KernelSet.AVX512_BF16: "in bfloat16 quantized in memory: four bits are the fastest at few "
    "rows; at hundreds they are a tenth slower than plain bfloat16, and --quantization int8 is "
    "faster",
    KernelSet.PORTABLE: "unpacked while they are read, with the memory use and speed of "
    "unquantized weights",
}


class ProcessorFacts(TypedDict):
    """`kernel_set` is what a run takes, `kernel_sets` those that could be asked for. `speed`,
    `bytes`, `int8` and `quantized` are sentences.
    """

    name: str
    features: list[str]
    kernel_set: str | None
    kernel_sets: list[str]
    speed: str
    bytes: str
    int8: str
    quantized: str


def processor_facts(findings: Findings) -> ProcessorFacts:
    """Return what is known of the processor; without Numba, that is its name."""
    facts: ProcessorFacts = {
        "name": processor_name(),
        "features": [],
        "kernel_set": None,
        "kernel_sets": [],
        "speed": "not known without numba",
        "bytes": "not known without numba",
        "int8": "not known without numba",
        "quantized": "not known without numba",
    }
    try:
        there = features()
    except Exception:  # numba or LLVM is missing or does not load, which its version says
        return facts
    facts["features"] = [name for name in _SHOWN if name in there]
    facts["kernel_sets"] = [each.value for each in KernelSet.supported()]
    try:
        chosen = KernelSet.best()
    except ValueError as error:
        findings.problems.append(f"{VARIABLE}: {error}; unset it, or set it to one of these")
        return facts
    facts["kernel_set"] = chosen.value
    facts["speed"] = _SPEED[chosen]
    facts["bytes"] = f"those of {chosen}; use --kernel-set {chosen} for identical output elsewhere"
    facts["int8"] = _int8(chosen)
    facts["quantized"] = _QUANTIZED[chosen]
    if chosen is not KernelSet.supported()[0]:
        findings.advice.append(
            f"{VARIABLE} selects {chosen}; without it, runs use {facts['kernel_sets'][0]}, "
            "which is faster"
        )
    return facts


def _int8(chosen: KernelSet) -> str:
    """Say what `--quantization int8` gains, by what `Int8Linear` chooses."""
    if chosen is KernelSet.AMX and has_features("amx-int8"):
        return "the fastest format here: 1.4 to 1.8 times as fast as bfloat16 in our measurements"
    if has_features("avx512f", "avx512vnni"):
        return (
            "on AVX512-VNNI: half the memory of bfloat16, and, without bfloat16 tiles, 1.3 "
            "to 1.5 times as fast in our measurements"
        )
    return "half the memory of bfloat16, but slow at many rows: bfloat16 is faster here"
