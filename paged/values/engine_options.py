"""EngineOptions: keyword arguments of `LLM`, typed for editors and type checkers."""

from pathlib import Path
from typing import TypedDict


class EngineOptions(TypedDict, total=False):
    """Fields of `EngineConfig` and `ReplicaConfig` that `LLM` takes as keywords.

    A copy of their names and types: editors and type checkers read keywords from a literal list
    only. `tests/values/test_engine_options.py` keeps them equal.
    """

    model_impl: str
    device: str
    dtype: str
    quantization: str
    max_model_len: int | None
    block_size: int
    num_blocks: int | None
    kv_cache_memory_bytes: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    refill_share: float
    prefix_caching: bool
    prefix_once: bool
    preemption_mode: str
    swap_space_bytes: int
    gpu_memory_utilization: float
    kv_cache_dtype: str
    reproducible: bool
    enforce_eager: bool
    kernel_set: str
    jump_ahead: bool
    prefix_store: str | Path | None
    prefix_store_bytes: int

    replicas: int | None
    ray_address: str | None
    cpus_per_replica: int | None
    gpus_per_replica: float | None
    push_model: bool
