"""The flags of `generate`, of which other commands take some.

Each field of these configurations that has a `Flag` is one. Those named here lead their panels in
the help; a new one need not be named.
"""

from pagedrun.cli.options.flags import Flags
from pagedrun.cli.options.run_options import Display, RunOptions
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig
from pagedrun.paged.values.sampling_params import SamplingParams

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

# What `generate -h` shows.
DAILY = (
    *("output", "model", "recipe", "limit", "resume", "overwrite"),
    *("system", "prompt_template", "prompt_field"),
    *("max_tokens", "temperature", "seed", "stop", "json_schema"),
    "quiet",
)
