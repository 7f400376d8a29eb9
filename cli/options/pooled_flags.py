"""Flags of `embed`, `rerank` and `classify`, and reasons for those of `generate` that they lack."""

from pagedrun.cli.options.flags import Flags, spellings
from pagedrun.cli.options.generate_flags import GENERATE
from pagedrun.paged.values.pooling import PoolingParams, Task

_FILES = (
    *("input_name", "output", "input_format", "delimiter", "encoding", "out_dir", "overwrite"),
    *("resume", "columns", "flatten", "shards", "recipe"),
    *("retry_errors", "ordered", "strict", "limit", "deadline", "report"),
)
_MODEL = (
    *("model", "revision", "tokenizer", "device", "dtype", "quantization", "max_model_len"),
    *("reproducible", "kernel_set", "activations"),
)
_TEXTS = ("prompt_field", "prompt_template", "on_overlong")
_MEMORY = (
    *("max_num_batched_tokens", "max_num_seqs", "block_size", "num_blocks"),
    *("kv_cache_memory_bytes", "gpu_memory_utilization", "prefix_caching", "stall_timeout"),
    *("replicas", "ray_address", "cpus_per_replica", "gpus_per_replica"),
)
_DISPLAY = ("progress", "report_view", "json_report", "quiet")
POOLED = Flags.of(PoolingParams)


def _flags(texts: tuple[str, ...], *own: str) -> Flags:
    shared = GENERATE.only(*_FILES, *_MODEL, *texts, *_MEMORY, *_DISPLAY)
    return (shared + POOLED.only(*own)).by_panel("output", "recipe", "model")


EMBED = _flags(
    _TEXTS,
    *("pooling", "normalize", "dimensions", "prompt_name", "prompt", "chunks", "vector_type"),
)
RERANK = _flags(("on_overlong",), "instruction", "pair_order", "top_n")
CLASSIFY = _flags(_TEXTS)
OF_TASK = {Task.EMBED: EMBED, Task.RERANK: RERANK, Task.CLASSIFY: CLASSIFY}

_NOT_HERE = {
    "push_model": "a folder of sentence-transformers has folders of its own; put it on every node",
    "html": "the page shows the KV memory of answers; the report is OUT.report.json",
    "from_output": "no results of another output are reused; --resume continues this one",
}


def why_not_pooled(flag: str, command: str) -> str | None:
    """Return the reason why a flag of `generate` is none of a command here; None for others."""
    name = next((each.name for each in GENERATE if flag in spellings(each)), None)
    if name is None:
        return None
    why = _NOT_HERE.get(name, "it is about the answers of pagedrun generate")
    return f"{flag} is no flag of pagedrun {command}: {why.format(command=command)}"
