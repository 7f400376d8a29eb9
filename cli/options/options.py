"""The flags of `generate`: one annotated type each, named as users of vLLM know them.

Every flag is None when it is not given, so that defaults live in one place (`EngineConfig`,
`SamplingParams`) and the manifest can say what the user set.
"""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from pagedrun.cli.options.choices import (
    Device,
    Dtype,
    GenerationDefaults,
    KernelSetChoice,
    KvCacheDtype,
    Preemption,
    ProgressMode,
)
from pagedrun.cli.terminal.sizes import parse_size, show_size
from pagedrun.paged.job.config import DEFAULT_STALL_TIMEOUT
from pagedrun.paged.job.prompts.overlong import Overlong
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.sampling import SamplingParams


def _flag(name: str, help_text: str, panel: str, **settings: Any) -> Any:
    default = settings.pop("default", None)
    shown = help_text if default is None else f"{help_text} Default: {default}."
    settings.update(help=shown, rich_help_panel=panel, show_default=False)
    return typer.Option(*settings.pop("declared", (f"--{name}",)), **settings)


def _switch(name: str, help_text: str, panel: str) -> Any:
    """Return a flag that is off unless given; its --no- form turns off what a recipe turned on."""
    return _flag(name, help_text, panel, declared=(f"--{name}/--no-{name}",))


def _engine(name: str, help_text: str, panel: str, **settings: Any) -> Any:
    """Return an engine flag that shows the engine's own default, unless another is given."""
    default = default_of(EngineConfig, name.replace("-", "_"))
    return _flag(name, help_text, panel, **{"default": default, **settings})


def _sampling(name: str, help_text: str, **settings: Any) -> Any:
    """Return a sampling flag that shows the default of `SamplingParams`."""
    default = default_of(SamplingParams, name.replace("-", "_"))
    return _flag(name, help_text, "Sampling", default=default, **settings)


def default_of(kind: type[EngineConfig] | type[SamplingParams], name: str) -> str | None:
    """Return the default of a field as the help shows it, None if the engine decides."""
    value = next(field.default for field in fields(kind) if field.name == name)
    return None if value is None else f"{value:g}" if isinstance(value, float) else str(value)


_FILES, _MODEL, _PROMPTS, _MEMORY = "Files", "Model", "Prompts", "Memory and batching"

InputName = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="Rows to answer: .jsonl, .json, .csv or .txt (each also with .gz or .zst), .parquet, "
        "a save_to_disk folder, hf:NAME, or - for JSONL on stdin.",
    ),
]
Output = Annotated[
    str | None,
    _flag(
        "output",
        "Where answers go, one JSON object a line; - is stdout.",
        _FILES,
        default="INPUT's stem + .out.jsonl, in this folder",
        declared=("--output", "-o"),
        metavar="OUT",
    ),
]
RecipeFlag = Annotated[
    str | None,
    _flag(
        "recipe",
        "Settings from a YAML file, or a bundled recipe (pagedrun recipes list). Flags win.",
        _FILES,
        metavar="FILE",
    ),
]
Overwrite = Annotated[bool | None, _switch("overwrite", "Replace the output if it exists.", _FILES)]
Resume = Annotated[
    bool | None,
    _switch(
        "resume", "Go on with the output of a run that was stopped: the rows it lacks.", _FILES
    ),
]
RetryErrors = Annotated[
    bool | None, _switch("retry-errors", "With --resume, try failed rows again.", _FILES)
]
Ordered = Annotated[
    bool | None, _switch("ordered", "Sort the output by input order at the end.", _FILES)
]
Strict = Annotated[
    bool | None,
    _switch("strict", "Refuse the whole input for one bad row, before the model loads.", _FILES),
]
OnOverlong = Annotated[
    Overlong | None,
    _flag(
        "on-overlong",
        "What becomes of a prompt without room for an answer: error, truncate-left or "
        "truncate-right.",
        "Prompts",
        default="error",
        metavar="MODE",
    ),
]
StallTimeout = Annotated[
    float | None,
    _flag(
        "stall-timeout",
        "End the run if a step takes longer, with a dump of its state; 0 for never.",
        "Memory and batching",
        default=f"{DEFAULT_STALL_TIMEOUT:g}",
        min=0,
        metavar="SECONDS",
    ),
]
Limit = Annotated[
    int | None, _flag("limit", "Answer only the first N rows.", _FILES, min=1, metavar="N")
]
ReportPath = Annotated[
    Path | None,
    _flag(
        "report", "Where the memory report goes.", _FILES, metavar="PATH", default="OUT.report.json"
    ),
]
HtmlPath = Annotated[
    Path | None,
    _flag(
        "html",
        "Write the memory report as a page with charts and the block map over time: one file of "
        "5 MB, complete without a network.",
        _FILES,
        metavar="PATH",
    ),
]

Model = Annotated[
    str | None,
    _flag(
        "model",
        "Model folder, or hub id org/name.",
        _MODEL,
        default="the bundled demo",
        metavar="NAME",
    ),
]
Revision = Annotated[
    str | None, _flag("revision", "Branch, tag or commit of a hub model.", _MODEL, metavar="REF")
]
Tokenizer = Annotated[
    str | None,
    _flag(
        "tokenizer", "Tokenizer folder or hub id.", _MODEL, default="the model's", metavar="NAME"
    ),
]
DeviceFlag = Annotated[Device | None, _engine("device", "Where the model runs.", _MODEL)]
DtypeFlag = Annotated[
    Dtype | None,
    _engine(
        "dtype",
        "Number format of the model: auto, float32, bfloat16, float16.",
        _MODEL,
        metavar="FORMAT",
    ),
]
MaxModelLen = Annotated[
    int | None,
    _flag(
        "max-model-len",
        "Most tokens of prompt and answer together.",
        _MODEL,
        default="the model's positions",
        metavar="N",
    ),
]

System = Annotated[
    str | None,
    _flag(
        "system",
        "System prompt shared by all rows, text or @file. Rows with messages keep their own; a "
        "plain prompt becomes the user message after it.",
        _PROMPTS,
        metavar="TEXT",
    ),
]
PromptTemplateFlag = Annotated[
    str | None,
    _flag(
        "prompt-template",
        "Jinja template over a row's columns that makes its prompt, text or @file.",
        _PROMPTS,
        metavar="TEXT",
    ),
]
PromptField = Annotated[
    str | None, _flag("prompt-field", "Column that holds the prompt.", _PROMPTS, metavar="NAME")
]
ChatTemplate = Annotated[
    str | None,
    _flag(
        "chat-template",
        "Jinja chat template, text or @file.",
        _PROMPTS,
        default="the tokenizer's",
        metavar="TEXT",
    ),
]

MaxTokens = Annotated[int | None, _sampling("max-tokens", "Most tokens to generate.", metavar="N")]
MinTokens = Annotated[
    int | None, _sampling("min-tokens", "Fewest tokens before a stop.", metavar="N")
]
Temperature = Annotated[float | None, _sampling("temperature", "0 is greedy.", metavar="X")]
TopP = Annotated[
    float | None, _sampling("top-p", "Keep the likeliest tokens of this mass.", metavar="X")
]
TopK = Annotated[
    int | None, _sampling("top-k", "Keep the K likeliest tokens; 0 keeps all.", metavar="N")
]
MinP = Annotated[
    float | None, _sampling("min-p", "Drop tokens below this share of the top one.", metavar="X")
]
NumSamples = Annotated[int | None, _sampling("n", "Answers for each row.", metavar="N")]
Seed = Annotated[
    int | None, _sampling("seed", "Selects the random stream of every row.", metavar="N")
]
Stop = Annotated[
    list[str] | None,
    _flag("stop", "Text that ends an answer. Repeatable.", "Sampling", metavar="TEXT"),
]
StopTokenIds = Annotated[
    list[str] | None,
    _flag(
        "stop-token-ids",
        "Token ids that end an answer. Repeatable, or comma separated.",
        "Sampling",
        metavar="IDS",
    ),
]
IgnoreEos = Annotated[
    bool | None, _switch("ignore-eos", "Go on after the model's end of text.", "Sampling")
]
GenerationConfigFlag = Annotated[
    GenerationDefaults | None,
    _flag(
        "generation-config",
        "auto: what neither flag nor recipe says of temperature, top-p, top-k and min-p, the "
        "model's generation config does. vllm: it does not.",
        "Sampling",
        default="vllm",
    ),
]

BlockSize = Annotated[
    int | None, _engine("block-size", "Tokens in a block of KV memory.", _MEMORY, metavar="N")
]
NumBlocks = Annotated[
    int | None,
    _flag("num-blocks", "Blocks in the KV pool.", _MEMORY, metavar="N", default="what fits"),
]
KvCacheMemoryBytes = Annotated[
    int | None,
    _flag(
        "kv-cache-memory-bytes",
        "Size of the KV pool in bytes, such as 4GiB.",
        _MEMORY,
        default="what fits",
        parser=parse_size,
        metavar="SIZE",
    ),
]
Reproducible = Annotated[
    bool | None,
    _switch(
        "reproducible",
        "On a GPU, the same bytes whatever runs beside a row; slower. A CPU always gives them.",
        _MODEL,
    ),
]
KvCacheDtypeFlag = Annotated[
    KvCacheDtype | None,
    _engine(
        "kv-cache-dtype",
        "Keys and values in the model's format (auto) or, on a GPU, in fp8 or int8.",
        _MEMORY,
        metavar="FORMAT",
    ),
]
GpuMemoryUtilization = Annotated[
    float | None,
    _engine(
        "gpu-memory-utilization",
        "Share of a GPU's memory that may be filled.",
        _MEMORY,
        metavar="X",
    ),
]
EnforceEager = Annotated[
    bool | None,
    _switch("enforce-eager", "On a GPU, launch kernels one by one: no CUDA graphs.", _MODEL),
]
KernelSetFlag = Annotated[
    KernelSetChoice | None,
    _engine(
        "kernel-set",
        "What multiplies matrices on a CPU: auto is the fastest that the processor runs. Machines "
        "agree on every bit only with the same one.",
        _MODEL,
        metavar="SET",
    ),
]
MaxNumSeqs = Annotated[
    int | None, _engine("max-num-seqs", "Most sequences in one step.", _MEMORY, metavar="N")
]
MaxNumBatchedTokens = Annotated[
    int | None, _engine("max-num-batched-tokens", "Most tokens in one step.", _MEMORY, metavar="N")
]
PrefixCaching = Annotated[
    bool | None,
    _flag(
        "prefix-caching",
        "Compute and store a shared prefix once.",
        "Shared prefixes",
        default="on",
        declared=("--prefix-caching/--no-prefix-caching",),
    ),
]
PrefixOnce = Annotated[
    bool | None,
    _flag(
        "prefix-once",
        "Read a shared prefix once for all rows that decode. Off gives the same bytes, slower.",
        "Shared prefixes",
        default="on",
        declared=("--prefix-once/--no-prefix-once",),
    ),
]
PrefixStore = Annotated[
    Path | None,
    _flag(
        "prefix-store",
        "Folder that keeps the keys and values of shared prefixes for the next run.",
        "Shared prefixes",
        default="none, nothing is kept",
        metavar="DIR",
    ),
]
PrefixStoreBytes = Annotated[
    int | None,
    _engine(
        "prefix-store-bytes",
        "Most bytes in the prefix store; what was not used for longest goes.",
        "Shared prefixes",
        default=show_size(int(default_of(EngineConfig, "prefix_store_bytes") or 0)),
        parser=parse_size,
        metavar="SIZE",
    ),
]
PreemptionFlag = Annotated[
    Preemption | None,
    _engine(
        "preemption-mode", "When the pool is full: swap or recompute.", _MEMORY, metavar="MODE"
    ),
]
SwapSpaceBytes = Annotated[
    int | None,
    _engine(
        "swap-space-bytes",
        "Host memory for preempted sequences.",
        _MEMORY,
        default=show_size(int(default_of(EngineConfig, "swap_space_bytes") or 0)),
        parser=parse_size,
        metavar="SIZE",
    ),
]

Progress = Annotated[
    ProgressMode | None,
    _flag("progress", "How progress is shown on stderr.", "Display", default="auto"),
]
JsonFlag = Annotated[
    bool | None, _flag("json", "Print the report as JSON on stdout at the end.", "Display")
]
Quiet = Annotated[
    bool | None, _flag("quiet", "Show errors only: no progress, no tables.", "Display")
]
