"""Which number format a model runs in on this machine."""

from pathlib import Path

import torch

from pagedrun.paged.model_config import ModelConfig

# Flags of /proc/cpuinfo that mean matrix products in bfloat16 at more than float32 speed.
_FAST_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # x86, x86, Arm


def choose_dtype(asked: str, config: ModelConfig) -> torch.dtype:
    """Return the dtype for `--dtype asked`.

    "auto" takes the model's own where the processor is fast in it and float32 otherwise. float16
    models run in float32: no CPU multiplies float16 fast, and bfloat16 would drop three of their
    bits.
    """
    if asked != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[asked]
    if config.dtype == "bfloat16" and _cpu_flags() & _FAST_BFLOAT16:
        return torch.bfloat16
    return torch.float32


def _cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
