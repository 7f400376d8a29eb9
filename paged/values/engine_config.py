"""EngineConfig: how a model is run. One field per flag, in the flag's own name."""

from dataclasses import dataclass
from pathlib import Path

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.option_names import option, turned_off
from pagedrun.paged.values.precision import KV_DTYPES
from pagedrun.paged.values.preemption_mode import PreemptionMode

DEVICES = ("auto", "cpu", "cuda")
KERNEL_SETS = ("auto", *KernelSet)
DTYPES = ("auto", "float32", "bfloat16", "float16")
DEFAULT_STORE_BYTES = 10 * 2**30
_OPTIONAL = frozenset({"max_model_len", "num_blocks", "kv_cache_memory_bytes"})


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Where a field is `None` the engine decides: see `memory` for the pool's size.

    `max_model_len` bounds prompt and answer together, in tokens. `swap_space_bytes` is host memory
    for preempted sequences. `gpu_memory_utilization` is the share of a GPU's memory that may be
    filled; `enforce_eager` computes every step kernel by kernel there; `reproducible` makes a row's
    bytes independent of its batch there too, as they always are on a CPU. `kernel_set` names what
    multiplies matrices on a CPU. `prefix_store` is a
    folder that keeps shared prefixes from run to run, in at most `prefix_store_bytes`. Raises
    `UsageError` naming the flag for a value out of range.
    """

    model: Path
    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    prefix_caching: bool = True
    prefix_once: bool = True
    preemption_mode: str = "swap"
    swap_space_bytes: int = 2**30
    gpu_memory_utilization: float = 0.9
    kv_cache_dtype: str = "auto"
    reproducible: bool = False
    enforce_eager: bool = False
    kernel_set: str = "auto"
    prefix_store: Path | None = None
    prefix_store_bytes: int = DEFAULT_STORE_BYTES

    def __post_init__(self) -> None:
        for name, low in (
            ("block_size", 1),
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", 1),
            ("swap_space_bytes", 0),
            ("max_model_len", 2),
            ("num_blocks", 1),
            ("kv_cache_memory_bytes", 1),
            ("prefix_store_bytes", 1),
        ):
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise UsageError(
                    f"{option(name)} is {value!r}; it must be an integer of at least {low}"
                )
        if self.prefix_store is not None and not self.prefix_caching:
            raise UsageError(
                f"{option('prefix_store')} keeps what prefix caching finds; leave out "
                f"{turned_off('prefix_caching')}"
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise UsageError(
                f"{option('gpu_memory_utilization')} is {self.gpu_memory_utilization!r}; it must "
                "be above 0 and at most 1"
            )
        for name, allowed in (
            ("device", DEVICES),
            ("dtype", DTYPES),
            ("kv_cache_dtype", ("auto", *KV_DTYPES)),
            ("preemption_mode", tuple(PreemptionMode)),
            ("kernel_set", KERNEL_SETS),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise UsageError(f"{option(name)} is {value!r}; choose one of {', '.join(allowed)}")
