"""Which number format a model runs in on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import UsageError

if TYPE_CHECKING:  # a plan is made without torch
    import torch

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# What `--kv-cache-dtype` calls the number formats of a quantised cache, and torch their dtypes.
KV_DTYPES = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "int8": "int8"}
_SCALE_BYTES = 4  # of one float32 for each head of each token

# Flags of /proc/cpuinfo that mean matrix products in bfloat16 at more than float32 speed.
_FAST_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # x86, x86, Arm


def choose_dtype(asked: str, config: ModelConfig, *, is_gpu: bool) -> "torch.dtype":
    """Return the dtype for `--dtype asked`; see `choose_dtype_name`."""
    import torch

    dtype: torch.dtype = getattr(torch, choose_dtype_name(asked, config, is_gpu=is_gpu))
    return dtype


def choose_dtype_name(asked: str, config: ModelConfig, *, is_gpu: bool) -> str:
    """Return the name of the dtype for `--dtype asked`, a key of `DTYPE_BYTES`.

    "auto" takes the model's own where the processor is fast in it and float32 otherwise. On a CPU
    float16 models run in float32: none multiplies float16 fast, and bfloat16 would drop three of
    their bits. Raises `UsageError` for float16 on a CPU.
    """
    if asked == "float16" and not is_gpu:
        raise UsageError(
            "--dtype float16 needs a GPU: CPUs multiply it slowly; use float32 or bfloat16"
        )
    if asked != "auto":
        return asked
    if is_gpu:
        return config.dtype
    if config.dtype == "bfloat16" and _cpu_flags() & _FAST_BFLOAT16:
        return "bfloat16"
    return "float32"


def choose_kv_dtype_name(asked: str, dtype: str, *, is_gpu: bool) -> str | None:
    """Return the name of the cache's dtype for `--kv-cache-dtype asked`, None for the model's own.

    dtype: the model's, a key of `DTYPE_BYTES`. Raises `UsageError` for a quantised cache on a CPU,
    whose kernels do not read it, and beside a float32 model, whose digits it would throw away.
    """
    if asked == "auto":
        return None
    if not is_gpu:
        raise UsageError(
            f"--kv-cache-dtype {asked} needs a GPU: on a CPU keys and values stay in the model's "
            "dtype; leave it at auto"
        )
    if dtype == "float32":
        raise UsageError(
            f"--kv-cache-dtype {asked} keeps fewer digits than --dtype float32 is there for; use "
            "--dtype bfloat16 or float16 with it, or leave it at auto"
        )
    return KV_DTYPES[asked]


def kv_bytes(num_vectors: int, head_dim: int, dtype: str) -> int:
    """Return the bytes of so many heads of keys or values; dtype: a key of one of the tables."""
    if dtype in KV_DTYPES:
        return num_vectors * (head_dim + _SCALE_BYTES)
    return num_vectors * head_dim * DTYPE_BYTES[dtype]


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
