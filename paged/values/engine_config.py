"""Configuration of an engine, of its replicas and of a run.

Every field of `EngineConfig` and `ReplicaConfig` has a flag.
"""

from collections.abc import Container
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypedDict

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.quantized_form import Activations
from pagedrun.paged.values.errors import UsageError, option, turned_off
from pagedrun.paged.values.flags import Flag, Form, Panel, check_fields
from pagedrun.paged.values.rules import Rule, integers, is_int, one_of

AUTO, OFF = "auto", "off"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# What `--kv-cache-dtype` calls the number formats of a quantised cache, and torch their dtypes.
KV_DTYPES = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "int8": "int8"}


class PreemptionMode(StrEnum):
    """Recovery of the keys and values of a preempted sequence."""

    SWAP = "swap"
    RECOMPUTE = "recompute"


DEVICES = ("auto", "cpu", "cuda")
KERNEL_SETS = ("auto", *KernelSet)
ACTIVATIONS = tuple(Activations)
MODEL_IMPLS = ("auto", "pagedrun", "transformers")
DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = ("auto", "none", "int8")
# What suits a device and a file where nobody says: see `planning/sizing.py`.
FITTED = ("block_size", "max_num_seqs", "max_num_batched_tokens", "refill_share")
DEFAULT_STORE_BYTES = 10 * 2**30


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value <= 1


def _is_size_or_auto(value: object) -> bool:
    return value == AUTO or (is_int(value) and value > 0)  # type: ignore[operator]


def _is_speculation(value: object) -> bool:
    return value in (AUTO, OFF) or (isinstance(value, str) and value.isdecimal() and value != "0")


def _is_part(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Configuration of an engine; for a field that is None the engine chooses.

    `quantization` says whether the checkpoint's weights may be quantised, and whether plain ones
    are rounded to int8 while they are read. `max_model_len` bounds prompt and answer together, in
    tokens. `swap_space_bytes` is host memory for preempted sequences, or the size of a file in
    `swap_dir`. `gpu_memory_utilization` is the share of a GPU's memory that may be filled;
    `speculate` says how many tokens of a sequence are drafted in a step; `enforce_eager` computes
    every step kernel by kernel; `reproducible` makes a row's bytes independent of its batch on a
    GPU too, as they always are on a CPU. `kernel_set` names what multiplies matrices on a CPU,
    `activations` the inputs of its layers with quantized weights, see `Activations`. `model_impl`
    "transformers" has the library's code compute the model, whatever its type; the others, that of
    pagedrun. `prefix_store` is a folder that keeps shared prefixes from run to run, in at most
    `prefix_store_bytes`. `weights_memory` bytes of weights are kept in the memory of the device,
    with "auto" all if they fit; the others are packed in `packed_dir`, which holds at most
    `packed_bytes`. `fitted` names those fields that nobody gave and that an engine may change to
    suit the device and the file. Raises `UsageError` naming the field for a value out of range.
    """

    model: Annotated[
        Path,
        Flag(
            "Model folder, hub id org/name, .gguf file, or demo for the bundled one.",
            Panel.MODEL,
            "NAME",
            form=Form.MODEL,
            declared=("--model", "-m"),
        ),
    ]
    model_impl: Annotated[
        str,
        Flag(
            "Implementation of the model: pagedrun's own (auto), or transformers, for model "
            "types that pagedrun has no code for.",
            Panel.MODEL,
            "IMPL",
            rule=one_of(MODEL_IMPLS),
        ),
    ] = "auto"
    device: Annotated[str, Flag("Device to run on.", Panel.MODEL, rule=one_of(DEVICES))] = "auto"
    dtype: Annotated[
        str,
        Flag(
            "Number format of the model: auto, float32, bfloat16, float16.",
            Panel.MODEL,
            "FORMAT",
            rule=one_of(DTYPES),
        ),
    ] = "auto"
    quantization: Annotated[
        str,
        Flag(
            "Read quantized checkpoints (auto), refuse them (none), or round unquantized "
            "weights and their inputs to 8 bits (int8).",
            Panel.MODEL,
            "KIND",
            rule=one_of(QUANTIZATIONS),
        ),
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        Flag(
            "Maximum number of tokens of prompt and answer together.",
            Panel.MODEL,
            "N",
            default="the model's positions",
            rule=integers(2),
        ),
    ] = None
    block_size: Annotated[
        int,
        Flag(
            "Tokens per block of KV memory.",
            Panel.MEMORY,
            "N",
            default="16, 64 on a GPU",
            rule=integers(1),
        ),
    ] = 16
    num_blocks: Annotated[
        int | None,
        Flag(
            "Blocks in the KV pool.", Panel.MEMORY, "N", default="as many as fit", rule=integers(1)
        ),
    ] = None
    kv_cache_memory_bytes: Annotated[
        int | None,
        Flag(
            "Size of the KV pool in bytes, such as 4GiB.",
            Panel.MEMORY,
            "SIZE",
            default="as much as fits",
            form=Form.SIZE,
            rule=integers(1),
        ),
    ] = None
    max_num_seqs: Annotated[
        int,
        Flag(
            "Maximum number of sequences in one step.",
            Panel.MEMORY,
            "N",
            default="128, on a GPU 64 to 1024 by its memory",
            rule=integers(1),
        ),
    ] = 128
    max_num_batched_tokens: Annotated[
        int,
        Flag(
            "Maximum number of tokens in one step.",
            Panel.MEMORY,
            "N",
            default="2048, on a GPU 4096 to 16384 by its memory",
            rule=integers(1),
        ),
    ] = 2048
    refill_share: Annotated[
        float,
        Flag(
            "Share of the running sequences that must end before waiting ones are admitted, "
            "in groups; 0 admits them immediately.",
            Panel.MEMORY,
            "X",
            default="0, 0.0625 on a GPU",
            rule=Rule(_is_part, "at least 0 and below 1"),
        ),
    ] = 0.0
    prefix_caching: Annotated[
        bool, Flag("Compute and store a shared prefix once.", Panel.PREFIXES)
    ] = True
    prefix_once: Annotated[
        bool,
        Flag(
            "Read a shared prefix once for all decoding rows. Off gives the same bytes, slower.",
            Panel.PREFIXES,
        ),
    ] = True
    preemption_mode: Annotated[
        str,
        Flag(
            "Preemption when the pool is full: swap or recompute.",
            Panel.MEMORY,
            "MODE",
            rule=one_of(tuple(PreemptionMode)),
        ),
    ] = "swap"
    swap_space_bytes: Annotated[
        int,
        Flag(
            "Host memory for preempted sequences.",
            Panel.MEMORY,
            "SIZE",
            form=Form.SIZE,
            rule=integers(0),
        ),
    ] = 2**30
    swap_dir: Annotated[
        Path | None,
        Flag(
            "Folder of a file for preempted sequences, instead of memory. CPU only.",
            Panel.MEMORY,
            "DIR",
            default="memory",
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        float,
        Flag(
            "Share of a GPU's memory to use.",
            Panel.MEMORY,
            "X",
            rule=Rule(_is_share, "above 0 and at most 1"),
        ),
    ] = 0.9
    kv_cache_dtype: Annotated[
        str,
        Flag(
            "Format of keys and values: the model's (auto), fp8 or int8.",
            Panel.MEMORY,
            "FORMAT",
            rule=one_of(("auto", *KV_DTYPES)),
        ),
    ] = "auto"
    reproducible: Annotated[
        bool,
        Flag(
            "On a GPU, give a row the same bytes in any batch, at lower speed. A CPU always does.",
            Panel.MODEL,
        ),
    ] = False
    speculate: Annotated[
        str,
        Flag(
            "Drafts of a sequence in a step, from its own text, other answers, those of --from and "
            "the model's MTP module: a number, auto or off. The answers have the same bytes. "
            "On a GPU with --reproducible.",
            Panel.MODEL,
            "auto|off|N",
            rule=Rule(_is_speculation, "auto, off or a number above 0"),
        ),
    ] = AUTO
    enforce_eager: Annotated[
        bool,
        Flag("Launch kernels one by one: no CUDA graphs, no replayed steps.", Panel.MODEL),
    ] = False
    kernel_set: Annotated[
        str,
        Flag(
            "Implementation of matrix products on a CPU; auto is the fastest that the "
            "processor supports. Machines give identical output only with the same set.",
            Panel.MODEL,
            "SET",
            rule=one_of(KERNEL_SETS),
        ),
    ] = "auto"
    activations: Annotated[
        str,
        Flag(
            "Inputs of layers with quantized weights on a CPU: unchanged (exact), rounded to "
            "8 bits (int8), or either by weight format and kernel set (auto).",
            Panel.MODEL,
            "KIND",
            rule=one_of(ACTIVATIONS),
        ),
    ] = "auto"
    jump_ahead: Annotated[
        bool,
        Flag(
            "Take tokens that a structure forces without a step for each. Off gives the "
            "same bytes, slower.",
            Panel.STRUCTURE,
        ),
    ] = True
    prefix_store: Annotated[
        Path | None,
        Flag(
            "Folder that keeps the keys and values of shared prefixes for later runs.",
            Panel.PREFIXES,
            "DIR",
            default="none",
        ),
    ] = None
    prefix_store_bytes: Annotated[
        int,
        Flag(
            "Maximum size of the prefix store; the least recently used prefixes are removed.",
            Panel.PREFIXES,
            "SIZE",
            form=Form.SIZE,
            rule=integers(1),
        ),
    ] = DEFAULT_STORE_BYTES
    weights_memory: Annotated[
        int | str,
        Flag(
            "Memory for weights, of the GPU if there is one, such as 12GiB; the rest is read in "
            "each pass. auto keeps all of them if they fit.",
            Panel.MEMORY,
            "SIZE|auto",
            form=Form.SIZE_OR_AUTO,
            rule=Rule(_is_size_or_auto, "a number of bytes, or auto"),
        ),
    ] = AUTO
    packed_dir: Annotated[
        Path | None,
        Flag(
            "Folder of the weights that are read in each pass, packed for this processor.",
            Panel.MEMORY,
            "DIR",
            default="packed in the user's cache folder",
        ),
    ] = None
    packed_bytes: Annotated[
        int | None,
        Flag(
            "Maximum size of that folder; the least recently used models are removed.",
            Panel.MEMORY,
            "SIZE",
            default="unlimited",
            form=Form.SIZE,
            rule=integers(1),
        ),
    ] = None
    fitted: tuple[str, ...] = ()

    @classmethod
    def fitting(cls, **given: Any) -> "EngineConfig":
        """Return a configuration with `given` fields; other device-dependent ones are `fitted`."""
        return cls(**given, fitted=tuple(name for name in FITTED if name not in given))

    def described(self) -> dict[str, object]:
        """Return all fields, as a report has them: those that are `fitted` as one text."""
        return {**asdict(self), "fitted": ", ".join(self.fitted)}

    def __post_init__(self) -> None:
        check_fields(self)
        if self.prefix_store is not None and not self.prefix_caching:
            raise UsageError(
                f"{option('prefix_store')} needs prefix caching; leave out "
                f"{turned_off('prefix_caching')}"
            )


MOST_REPLICAS = 4096


def _is_gpu_share(value: object) -> bool:
    """Return whether Ray can give so many GPUs: whole ones, or a part of one."""
    return isinstance(value, int | float) and (0 <= value <= 1 or float(value).is_integer())


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Replicas are engines with the same model, in processes of their own, which Ray starts.

    `replicas` is how many, None for none: the engine is then in this process. `ray_address` is that
    of a cluster that runs already; None starts one on this machine and ends it with the run.
    `push_model` sends the model's folder to nodes that do not have it. Raises `UsageError` naming
    the field for a value out of range.
    """

    replicas: Annotated[
        int | None,
        Flag(
            "Run N engines in separate processes, started by Ray.",
            Panel.REPLICAS,
            "N",
            default="one engine, in this process, without Ray",
            low=1,
            high=MOST_REPLICAS,
        ),
    ] = None
    ray_address: Annotated[
        str | None,
        Flag(
            "Ray cluster to run the replicas on, such as 10.0.0.1:6379 or auto.",
            Panel.REPLICAS,
            "ADDRESS",
            default="a private one on this machine that ends with the run",
        ),
    ] = None
    cpus_per_replica: Annotated[
        int | None,
        Flag(
            "CPUs, and threads, of each replica.",
            Panel.REPLICAS,
            "K",
            default="the machine's, divided by the number of replicas",
            low=1,
        ),
    ] = None
    gpus_per_replica: Annotated[
        float | None,
        Flag(
            "GPUs of each replica.",
            Panel.REPLICAS,
            "G",
            default="1 if the model runs on a GPU, else 0",
            rule=Rule(_is_gpu_share, "a whole number, or a share below 1"),
        ),
    ] = None
    push_model: Annotated[
        bool,
        Flag("Send the model's folder to nodes that do not have it.", Panel.REPLICAS),
    ] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def refuse_alone(self, names: Container[str]) -> None:
        """Raise `UsageError` if `names` has a replica option although there are no replicas."""
        for name in ("ray_address", "cpus_per_replica", "gpus_per_replica", "push_model"):
            if self.replicas is None and name in names and getattr(self, name):
                raise UsageError(f"{option(name)} needs {option('replicas')}", field=name)


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
    swap_dir: str | Path | None
    gpu_memory_utilization: float
    kv_cache_dtype: str
    reproducible: bool
    speculate: str
    enforce_eager: bool
    kernel_set: str
    activations: str
    jump_ahead: bool
    prefix_store: str | Path | None
    prefix_store_bytes: int
    weights_memory: int | str
    packed_dir: str | Path | None
    packed_bytes: int | None

    replicas: int | None
    ray_address: str | None
    cpus_per_replica: int | None
    gpus_per_replica: float | None
    push_model: bool


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at` is on the clock of `time.monotonic`, in seconds.

    Rows run in an order that is drawn with `seed`, so that those done by then are a fair sample.
    """

    at: float
    seed: int = 0


@dataclass(frozen=True, slots=True)
class WindowSize:
    """A window ends after `rows` rows, or after the row with which it exceeds `num_bytes` bytes.

    What rows share decides how they are computed, so the same file must be cut at the same places
    everywhere: no flag sets it.
    """

    rows: int = 2**20
    num_bytes: int = 2**28
