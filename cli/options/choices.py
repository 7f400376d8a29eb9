"""The words that flags with a fixed set of values take."""

from enum import StrEnum


class Device(StrEnum):
    """Where the model runs."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    """In what the model computes."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class KernelSetChoice(StrEnum):
    """What multiplies matrices on a CPU."""

    AUTO = "auto"
    AMX = "amx"
    AVX512_BF16 = "avx512-bf16"
    PORTABLE = "portable"


class GenerationDefaults(StrEnum):
    """Whose sampling settings apply where neither flag nor recipe has one."""

    AUTO = "auto"
    VLLM = "vllm"


class KvCacheDtype(StrEnum):
    """In what keys and values are stored."""

    AUTO = "auto"
    FP8 = "fp8"
    FP8_E4M3 = "fp8_e4m3"
    INT8 = "int8"


class Preemption(StrEnum):
    """What becomes of the keys and values of a sequence that has to wait."""

    SWAP = "swap"
    RECOMPUTE = "recompute"


class ProgressMode(StrEnum):
    """How progress is shown on stderr."""

    AUTO = "auto"
    RICH = "rich"
    PLAIN = "plain"
    JSON = "json"
    NONE = "none"
