"""The flags of `ask`."""

from dataclasses import dataclass
from typing import Annotated

from pagedrun.cli.options.flags import Flags
from pagedrun.cli.options.generate_flags import GENERATE
from pagedrun.paged.values.flags import Flag, Panel
from pagedrun.paged.values.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """What is asked, and how the answer is shown."""

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
        *("raw", "system", "chat_template", "chat_template_kwargs", "on_overlong"),
        "generation_config",
    )
    + Flags.of(SamplingParams)
    + GENERATE.only(
        *("jump_ahead", "num_blocks", "kv_cache_memory_bytes", "max_num_batched_tokens"),
        *("kv_cache_dtype", "gpu_memory_utilization", "prefix_store", "prefix_store_bytes"),
    )
    + Flags.of(AskOptions).only("json_row")
    + GENERATE.only("quiet")
)
