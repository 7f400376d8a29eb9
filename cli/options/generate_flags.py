"""Flags of `generate`, `ask` and `show`.

Every field of a configuration with a `Flag` is a flag. Fields named in `GENERATE` lead their panels
in the help; naming a new field is optional. Other commands take flags of `generate` by name. Loaded
at start-up.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pagedrun.cli.options.flags import Flags
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig
from pagedrun.paged.values.flags import Flag, Panel
from pagedrun.paged.values.sampling_params import SamplingParams


class GenerationDefaults(StrEnum):
    """Source of sampling settings without a flag or recipe value."""

    AUTO = "auto"
    VLLM = "vllm"


class ReportView(StrEnum):
    """Extent of the report on the screen."""

    SHORT = "short"
    FULL = "full"


class ProgressMode(StrEnum):
    """Form of the progress on stderr."""

    AUTO = "auto"
    RICH = "rich"
    PLAIN = "plain"
    JSON = "json"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run outside the job configuration."""

    recipe: Annotated[
        str | None,
        Flag(
            "Settings from a YAML file, or a bundled recipe (pagedrun recipes list). Flags win.",
            Panel.FILES,
            "FILE",
        ),
    ] = None
    html: Annotated[
        Path | None,
        Flag(
            "Write the memory report as a page with charts and the block map over time: one "
            "file of 5 MB that needs no network.",
            Panel.FILES,
            "PATH",
        ),
    ] = None
    revision: Annotated[
        str | None, Flag("Branch, tag or commit of a hub model.", Panel.MODEL, "REF")
    ] = None
    generation_config: Annotated[
        GenerationDefaults,
        Flag(
            "auto: the model's generation config sets the defaults of temperature, top-p, "
            "top-k, min-p and repetition-penalty. vllm: it is ignored.",
            Panel.SAMPLING,
        ),
    ] = GenerationDefaults.VLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """Options of the output on the terminal."""

    progress: Annotated[
        ProgressMode, Flag("Form of the progress display on stderr.", Panel.DISPLAY)
    ] = ProgressMode.AUTO
    report_view: Annotated[
        ReportView,
        Flag(
            "Report on the screen at the end, below the first answers: finished rows and "
            "memory in eight lines (short), or everything (full).",
            Panel.DISPLAY,
        ),
    ] = ReportView.SHORT
    json_report: Annotated[
        bool,
        Flag("Print the report as JSON on stdout at the end.", Panel.DISPLAY, declared=("--json",)),
    ] = False
    quiet: Annotated[
        bool,
        Flag("Show errors only: no progress, no tables.", Panel.DISPLAY, declared=("--quiet",)),
    ] = False


GENERATE = Flags.of(
    JobConfig, EngineConfig, ReplicaConfig, PromptConfig, SamplingParams, RunOptions, Display
).by_panel(
    *("output", "recipe"),
    *("model", "revision", "tokenizer"),
    *("system", "prompt_template", "prompt_field", "raw", "chat_template"),
    *("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("block_size", "num_blocks", "kv_cache_memory_bytes"),
    *("max_num_seqs", "max_num_batched_tokens", "preemption_mode", "swap_space_bytes"),
    *("kv_cache_dtype", "gpu_memory_utilization"),
)

# Flags of `generate -h`.
DAILY = (
    *("output", "model", "recipe", "limit", "resume", "overwrite"),
    *("system", "prompt_template", "prompt_field"),
    *("max_tokens", "temperature", "seed", "stop", "json_schema"),
    "quiet",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """Options of `ask`."""

    text: Annotated[
        str,
        Flag("Question. Files and standard input come before it.", None, "TEXT", is_argument=True),
    ] = ""
    file: Annotated[
        tuple[str, ...],
        Flag("A text file to put before the text; repeatable.", Panel.PROMPTS, "PATH"),
    ] = ()
    json_row: Annotated[
        bool,
        Flag(
            "Print the output row of generate on stdout instead, at the end.",
            Panel.DISPLAY,
            declared=("--json",),
        ),
    ] = False


ASK = (
    Flags.of(AskOptions).only("text", "file")
    + GENERATE.only(
        *("recipe", "model", "revision", "tokenizer", "model_impl", "device", "dtype"),
        *("quantization", "max_model_len", "reproducible", "enforce_eager", "kernel_set"),
        *("activations", "raw", "system", "chat_template", "chat_template_kwargs", "on_overlong"),
        "generation_config",
    )
    + Flags.of(SamplingParams)
    + GENERATE.only(
        *("jump_ahead", "num_blocks", "kv_cache_memory_bytes", "max_num_batched_tokens"),
        *("kv_cache_dtype", "gpu_memory_utilization", "weights_memory", "packed_dir"),
        *("packed_bytes", "prefix_store", "prefix_store_bytes"),
    )
    + Flags.of(AskOptions).only("json_row")
    + GENERATE.only("quiet")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """Options of `show`."""

    row: Annotated[
        str | None,
        Flag(
            "The row: a whole number is its index, counted from 0, anything else its id; id:17 is "
            "the id 17.",
            Panel.FILES,
            "ROW",
            default="0, the first",
        ),
    ] = None
    id: Annotated[
        str | None, Flag("The row with this `id` (or `custom_id`).", Panel.FILES, "ID")
    ] = None
    ids: Annotated[
        bool,
        Flag("Show the token ids too, after the text.", Panel.DISPLAY, declared=("--ids",)),
    ] = False
    json_row: Annotated[
        bool,
        Flag("Print all of it as JSON on stdout instead.", Panel.DISPLAY, declared=("--json",)),
    ] = False


SHOW = (
    GENERATE.only("input_name", "input_format", "delimiter", "encoding")
    + Flags.of(ShowOptions).only("row", "id")
    + GENERATE.only(
        *("recipe", "limit", "model", "revision", "tokenizer", "model_impl", "max_model_len"),
        *("system", "prompt_template", "prompt_field", "raw", "chat_template"),
        *("chat_template_kwargs", "on_overlong", "generation_config"),
    )
    + Flags.of(SamplingParams)
    + GENERATE.only("progress")
    + Flags.of(ShowOptions).only("ids", "json_row")
    + GENERATE.only("quiet")
)
