"""`pagedrun bench throughput`: flags, benchmark and tables."""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import pagedrun
from pagedrun.cli.bench.command import BenchCommand
from pagedrun.cli.bench.options import Heading, ModelOptions, ResultOptions
from pagedrun.cli.bench.tables import (
    NOTHING,
    Sheet,
    describe_model,
    show_ms,
    show_number,
    show_ratio,
    show_spread,
    show_tokens,
)
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE, RunOptions
from pagedrun.cli.terminal.units import show_size
from pagedrun.paged.values.engine_config import OFF, EngineConfig
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.flags import Flag

if TYPE_CHECKING:
    from pagedrun.paged.bench.contender import DeviceProfile, Peer, RunFigures
    from pagedrun.paged.bench.throughput import (
        ContenderFigures,
        ThroughputBench,
        ThroughputBenchFigures,
    )

HELP = """Measure prompt and generated tokens per second on this machine.

Rows of random tokens with a shared beginning are answered greedily to their full length. With \
--compare or --against, two settings or two programs run them in turns, and the ratios are \
printed. --against needs a checkout of pagedrun's repository, and for other programs than \
Transformers an installation of its own: docs/benchmarks.md describes it.

--compare takes a flag of the engine without its dashes, or "alone": every row reads the shared \
prefix itself, as fast as rows without one (no-prefix-once gives the same bytes, and is therefore \
slower); or "no-sharing": every row also computes and stores the prefix itself.

Examples:

  pagedrun bench throughput --rows 64 --shared 2048 --unique 64 --output 32
  pagedrun bench throughput --rows 256 --shared 0 --unique 100:1024 --output 100:1024
  pagedrun bench throughput --compare alone --repeat 5
  pagedrun bench throughput --rows 16 --shared 448 --output 64 --against transformers
  pagedrun bench throughput --model model.gguf --against llama.cpp --peer-path llama.cpp/build/bin
  pagedrun bench throughput --rows 1 --shared 0 --quantization int8 --compare quantization=none
  pagedrun bench throughput --model ./model-awq --compare activations=exact
  pagedrun bench throughput --shape llama-3.1-8b --layers 4 --profile
  pagedrun bench throughput --model ./model --save result.json
"""


class PeerName(StrEnum):
    """Other programs that can run the same rows."""

    TRANSFORMERS = "transformers"
    LLAMA_CPP = "llama.cpp"
    VLLM = "vllm"
    OPENVINO = "openvino"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions:
    """Rows to run, and the peer of the comparison."""

    rows: Annotated[int, Flag("Prompts.", Heading.ROWS, "N", low=1)] = 64
    shared: Annotated[
        int, Flag("Tokens of the prompts' shared beginning.", Heading.ROWS, "N", low=0)
    ] = 2048
    unique: Annotated[
        str,
        Flag(
            "Tokens of each prompt after the shared ones: a number, or LOW:HIGH for random "
            "lengths.",
            Heading.ROWS,
            "N",
        ),
    ] = "64"
    output: Annotated[
        str, Flag("Tokens to generate per row, in the same form as --unique.", Heading.ROWS, "N")
    ] = "32"
    group_size: Annotated[
        int | None,
        Flag(
            "Rows that share one beginning; each group has another.",
            Heading.ROWS,
            "N",
            default="all",
            low=1,
        ),
    ] = None
    speculate: Annotated[
        str,
        Flag(
            "Drafts, as in generate: auto, off or a number. Random answers repeat themselves "
            "unlike those of a job.",
            Heading.ROWS,
            "auto|off|N",
        ),
    ] = OFF
    against: Annotated[
        PeerName | None,
        Flag(
            "Also run the same rows and weights in another program.",
            Heading.COMPARED,
        ),
    ] = None
    peer_path: Annotated[
        Path | None,
        Flag(
            "Folder with llama-batched-bench, or the Python interpreter of vLLM or OpenVINO.",
            Heading.COMPARED,
            "PATH",
            default="$PAGEDRUN_LLAMA_CPP, $PAGEDRUN_VLLM_PYTHON, $PAGEDRUN_OPENVINO_PYTHON",
        ),
    ] = None
    hf_batch: Annotated[
        int | None,
        Flag(
            "Batch size of Transformers.",
            Heading.COMPARED,
            "N",
            default="all rows, or as many as fit",
            low=1,
        ),
    ] = None
    compare: Annotated[
        str | None,
        Flag(
            "Also run with another setting: alone, no-sharing, or a flag such as block-size=32.",
            Heading.COMPARED,
            "FLAG",
        ),
    ] = None
    repeat: Annotated[
        int | None,
        Flag(
            "Runs of each contender.",
            Heading.COMPARED,
            "N",
            default="3 in a comparison, else 1",
            low=1,
        ),
    ] = None
    profile: Annotated[
        bool,
        Flag(
            "Show times by operation, or on a GPU by kernel, in an additional run.",
            Heading.COMPARED,
            declared=("--profile",),
        ),
    ] = False


FLAGS = (
    Flags.of(ModelOptions)
    + GENERATE.only("revision")
    + Flags.of(ThroughputOptions)
    + GENERATE.only(
        *("device", "dtype", "quantization", "max_model_len", "block_size", "num_blocks"),
        *("kv_cache_memory_bytes", "kernel_set", "activations", "kv_cache_dtype"),
        *("gpu_memory_utilization", "enforce_eager", "reproducible"),
        *("max_num_seqs", "max_num_batched_tokens"),
        *("prefix_caching", "prefix_once", "preemption_mode", "swap_space_bytes"),
    )
    + Flags.of(ResultOptions)
)


# In a checkout; an installed package has no such folder.
BENCHMARKS = Path(pagedrun.__file__).resolve().parents[2] / "benchmarks"


def _figures(result: "ThroughputBenchFigures") -> Sheet:
    contenders = result["contenders"]

    def spread(label: str, figure: str, show: Callable[[float], str]) -> tuple[str, ...]:
        return (label, *(show_spread(each["summary"][figure], show) for each in contenders))

    def last(label: str, figure: str, form: str) -> tuple[str, ...]:
        """Return a line of the last runs; peers have fewer figures than the engine."""
        found = [getattr(each["runs"][-1], figure, None) for each in contenders]
        return (label, *(NOTHING if value is None else form.format(value) for value in found))

    rows = [
        spread("total, s", "total_s", show_number),
        spread("prompt tokens/s", "prompt_tokens_per_s", show_number),
        spread("generated tokens/s", "generated_tokens_per_s", show_number),
        spread("prefill, s", "prefill_s", show_number),
        spread("decode step, ms", "decode_step_s", show_ms),
        last("rows in that step", "decode_rows", "{:,}"),
        last("hit rate", "hit_rate", "{:.1%}"),
        last("blocks at peak", "peak_blocks", "{:,}"),
        last("CPUs busy elsewhere", "others_busy", "{:.1f}"),
        last("preemptions", "preemptions", "{:,}"),
    ]
    memory = _peak_memory(contenders)
    return Sheet(
        "Throughput",
        ("", *(each["name"] for each in contenders)),
        rows,
        f"Middle of {result['repeat']} (least…most). Cached prompt tokens count. {memory}"
        if result["repeat"] > 1
        else f"Cached prompt tokens count. {memory}",
    )


def _peak_memory(contenders: "Seq[ContenderFigures]") -> str:
    """Return a sentence with the peak memory of this process and of those of peers."""
    from pagedrun.paged.bench.contender import OtherProcessRun

    peaks: dict[str, int] = {}
    for each in contenders:
        for run in each["runs"]:
            owner = each["name"] if isinstance(run, OtherProcessRun) else "the process"
            peaks[owner] = max(run.peak_memory, peaks.get(owner, 0))
    shown = (f"{owner}: {show_size(peak)}" for owner, peak in peaks.items() if peak)
    return f"Peak memory of {', '.join(shown)}."


def _kernels(profiles: "list[DeviceProfile]") -> list[tuple[str, ...]]:
    tables = [{each["name"]: each for each in profile.kernels} for profile in profiles]
    names = dict.fromkeys(name for table in tables for name in table)
    most = {name: max(t[name]["seconds"] for t in tables if name in t) for name in names}
    return [
        (
            _short(name),
            *(
                f"{table[name]['seconds']:.3f} in {table[name]['count']:,}"
                if name in table
                else NOTHING
                for table in tables
            ),
        )
        for name in sorted(most, key=lambda each: -most[each])
    ]


def _of_a_step(run: "RunFigures") -> tuple[float, dict[str, float]]:
    """Return the mean seconds of a decode step, and those of each operation in it."""
    steps = run.decode_step
    if steps is None:
        return 0.0, {}
    return steps.mean, {op: each / steps.count for op, each in run.decode_ops.items()}


def _ops(
    each: Seq[tuple[float, Mapping[str, float]]], show: Callable[[float], str]
) -> list[Seq[str]]:
    """Return a line for each operation, the slowest first, and one for the rest."""
    most = {op: max(ops.get(op, 0.0) for _, ops in each) for _, ops in each for op in ops}
    rows: list[Seq[str]] = [
        (op, *(show(ops[op]) if op in ops else NOTHING for _, ops in each))
        for op in sorted(most, key=lambda op: -most[op])
    ]
    rest = [max(whole - sum(ops.values()), 0.0) for whole, ops in each]
    return [*rows, ("everything else", *map(show, rest))]


def _profiles(result: "ThroughputBenchFigures") -> list[Sheet]:
    from pagedrun.paged.bench.contender import RunFigures

    last = [(each["name"], each["runs"][-1]) for each in result["contenders"]]
    timed = [(name, run) for name, run in last if isinstance(run, RunFigures) and run.ops]
    header = ("op", *(name for name, _ in timed))
    runs = [run for _, run in timed]
    whole = [(run.total_s, run.ops) for run in runs]
    steps = [_of_a_step(run) for run in runs]
    return [
        Sheet("Time by operation, s", header, _ops(whole, "{:.3f}".format), "The last run."),
        Sheet("Time of a decode step, ms", header, _ops(steps, show_ms)),
    ]


def _ratios(result: "ThroughputBenchFigures") -> Sheet:
    rows = [
        (
            f"than {ratio['name']}",
            show_spread(ratio["end_to_end"], show_ratio),
            show_spread(ratio["prefill"], show_ratio),
            show_spread(ratio["decode"], show_ratio),
            NOTHING
            if ratio["rows_alike"] is None
            else f"{ratio['rows_alike']:,} of {ratio['rows']:,}",
        )
        for ratio in result["ratios"]
    ]
    return Sheet(
        "pagedrun is faster",
        ("", "end to end", "prefill", "decode", "rows alike"),
        rows,
        "Ratios of times, turn by turn. Decode: seconds for each row's next token. Rows "
        "alike: those with the same tokens; other programs round differently.",
    )


def _short(name: str) -> str:
    """Return the name of a kernel without the parameters of a template."""
    return name if len(name) <= 60 else f"{name[:57]}..."


def describe_rows(result: "ThroughputBenchFigures") -> str:
    """Return the workload in a line."""
    rows = result["workload"]
    size = rows.group_size
    groups = f", {size} rows a group" if size is not None else ""
    return (
        f"{rows.rows:,} rows x ({rows.shared:,} shared + "
        f"{show_tokens(rows.unique)} unique + {show_tokens(rows.output)} out){groups}; "
        "random tokens, greedy"
    )


def device_sheets(result: "ThroughputBenchFigures") -> list[Sheet]:
    """Return the tables of device and host, and of kernels by time."""
    profiled = [each for each in result["contenders"] if "device_profile" in each]
    profiles = [each["device_profile"] for each in profiled]
    header = ("", *(each["name"] for each in profiled))

    def row(label: str, show: "Callable[[DeviceProfile], str]") -> tuple[str, ...]:
        return (label, *map(show, profiles))

    steps = [
        row("steps", lambda each: f"{each.steps:,}"),
        row("replayed from graphs", lambda each: f"{each.graph_steps:,}"),
        row("with prompts", lambda each: f"{each.prompt_steps:,}"),
        row("decoding, not replayed", lambda each: f"{each.eager_steps:,}"),
        row("GPU busy", lambda each: f"{each.device_busy:.1%}"),
        row("host ms a step", lambda each: show_ms(each.host_s_per_step)),
        row("host waited, s", lambda each: f"{each.host_waited_s:.3f}"),
        row("launches of graphs", lambda each: f"{each.graph_launches:,}"),
        row("launches of kernels", lambda each: f"{each.kernel_launches:,}"),
    ]
    return [
        Sheet(
            "GPU and host",
            header,
            steps,
            "An additional run under the profiler, which slows the host.",
        ),
        Sheet("Kernels by time, s", ("kernel", *header[1:]), _kernels(profiles)),
    ]


def throughput_bench(given: TypedValues) -> "ThroughputBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.bench.options import bench_model, comparison, lengths
    from pagedrun.cli.options.reading import read, values_of
    from pagedrun.paged.bench.throughput import ThroughputBench
    from pagedrun.paged.bench.workload import Workload

    options = read(ThroughputOptions, given)
    is_compared = bool(options.compare or options.against)
    return ThroughputBench(
        model=bench_model(read(ModelOptions, given), read(RunOptions, given).revision),
        workload=Workload(
            rows=options.rows,
            shared=options.shared,
            unique=lengths(options.unique, "--unique"),
            output=lengths(options.output, "--output"),
            group_size=options.group_size,
        ),
        flags={**values_of(EngineConfig, given, {"model"}), "speculate": options.speculate},
        comparison=comparison(options.compare) if options.compare else None,
        peer=open_peer(options.against, options.peer_path, options.hf_batch),
        repeat=options.repeat or (3 if is_compared else 1),
        profile=options.profile,
    )


def throughput_sheets(result: "ThroughputBenchFigures") -> list[Sheet]:
    """Return the tables: figures, then ratios and times by operation if measured."""
    sheets = [_figures(result)]
    if result["ratios"]:
        sheets.append(_ratios(result))
    if result["profile"]:
        on_gpu = any("device_profile" in each for each in result["contenders"])
        sheets += device_sheets(result) if on_gpu else _profiles(result)
    return sheets


def open_peer(
    name: PeerName | None,
    path: Path | None = None,
    batch_rows: int | None = None,
    benchmarks: Path = BENCHMARKS,
) -> "Peer | None":
    """Return the peer called `name`, None without a name.

    `path` is the place of its program, `batch_rows` the batch size of Transformers, None: as many
    as fit. Raises `UsageError` without its adapter or its program, and for what it does not take.
    """
    if name is None:
        for value, field in ((path, "peer_path"), (batch_rows, "hf_batch")):
            if value is not None:
                raise UsageError(f"{option(field)} belongs to {option('against')}")
        return None
    module = f"{name.replace('.', '_')}_peer"
    if not (benchmarks / "peers" / f"{module}.py").is_file():
        raise UsageError(
            f"{option('against')} {name} needs benchmarks/peers/{module}.py, which is in the "
            "repository of pagedrun and not in an installed package; run it in a checkout"
        )
    # Not by way of sys.path: other folders of a checkout have names of packages.
    package = ModuleType(benchmarks.name)
    package.__path__ = [str(benchmarks)]
    sys.modules.setdefault(benchmarks.name, package)
    name_of_module = f"{benchmarks.name}.peers.{module}"
    if name_of_module not in sys.modules:
        spec = importlib.util.find_spec(name_of_module)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name_of_module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name_of_module])
        # As an import statement does.
        setattr(sys.modules[f"{benchmarks.name}.peers"], module, sys.modules[name_of_module])
    peer: Peer = sys.modules[name_of_module].open_peer(path, batch_rows)
    return peer


THROUGHPUT = BenchCommand(
    name="throughput",
    help=HELP,
    flags=FLAGS,
    bench=throughput_bench,
    described={"model": describe_model, "rows": describe_rows},
    sheets=throughput_sheets,
    has_defaults=True,
)
