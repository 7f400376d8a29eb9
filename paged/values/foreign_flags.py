"""Flags and arguments of vLLM, llama.cpp, Transformers and others, and their names here.

`checked` refuses unknown arguments in Python with the name that was meant.
"""

import re
from collections.abc import Callable, Collection
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from pagedrun.paged.values.errors import UsageError, nearest

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

# vLLM's names in Python for what is no flag.
_RENAMED = {"sampling_params": "params", "use_tqdm": "progress"}
_FLAG = re.compile(r"--([a-z][a-z0-9-]*)")


def refuse_unknown(owner: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise `UsageError` for the first argument of `owner` that is not one of `known`."""
    for name in given:
        if name not in known:
            raise UsageError(_told(owner, name, known), field=name)


def checked(call: Callable[P, R]) -> Callable[P, R]:
    """Return the same function, for which an unknown argument is a `UsageError`."""
    known = frozenset(signature(call).parameters)
    name = call.__qualname__.removesuffix(".__init__")

    @wraps(call)
    def checked_call(*args: P.args, **given: P.kwargs) -> R:
        if not given.keys() <= known:
            refuse_unknown(name, given, [each for each in known if each != "self"])
        return call(*args, **given)

    return checked_call


def checked_class(kind: C) -> C:
    """Return the same class, for which an unknown argument is a `UsageError`."""
    initialize: Callable[..., Any] = kind.__init__  # type: ignore[misc]
    kind.__init__ = checked(initialize)  # type: ignore[misc]
    return kind


def _told(owner: str, name: str, known: Collection[str]) -> str:
    flag = "--" + name.replace("_", "-")
    ours = _RENAMED.get(name) or RENAMED.get(flag, "").removeprefix("--").replace("-", "_")
    if ours in known:
        return f"{owner}: {name} is called {ours} here"
    why = _FLAG.sub(lambda found: found[1].replace("-", "_"), MISSING.get(flag, ""))
    named = {each.replace("-", "_") for each in _FLAG.findall(MISSING.get(flag, ""))}
    if why and named <= {*known}:
        return f"{owner} has no argument {name}: {why}"
    return f"{owner} has no argument {name}{nearest(name, known)}"


RENAMED = {
    # vLLM's engine, server and run-batch
    "--enable-prefix-caching": "--prefix-caching",
    "--no-enable-prefix-caching": "--no-prefix-caching",
    "--swap-space": "--swap-space-bytes",
    "--num-gpu-blocks-override": "--num-blocks",
    "--reasoning-parser": "--reasoning-tags",
    "--default-chat-template-kwargs": "--chat-template-kwargs",
    "--override-generation-config": "--recipe",
    "--output-file": "--output",
    "--guided-json": "--json-schema",
    "--guided-regex": "--regex",
    "--guided-choice": "--choice",
    "--guided-grammar": "--grammar",
    "--max-logprobs": "--logprobs",
    "--system-prompt": "--system",
    # llama.cpp
    "--n-predict": "--max-tokens",
    "--predict": "--max-tokens",
    "--ctx-size": "--max-model-len",
    "--temp": "--temperature",
    "--repeat-penalty": "--repetition-penalty",
    "--cache-type-k": "--kv-cache-dtype",
    "--cache-type-v": "--kv-cache-dtype",
    "--n-parallel": "--max-num-seqs",
    "--parallel": "--max-num-seqs",
    "--hf-repo": "--model",
    "--grammar-file": "--grammar",
    "--chat-template-file": "--chat-template",
    "--prompt-cache": "--prefix-store",
    "--system-prompt-file": "--system",
    # Transformers, TGI and others
    "--model-id": "--model",
    "--model-name": "--model",
    "--model-path": "--model",
    "--model-name-or-path": "--model",
    "--tokenizer-name": "--tokenizer",
    "--tokenizer-path": "--tokenizer",
    "--max-new-tokens": "--max-tokens",
    "--max-completion-tokens": "--max-tokens",
    "--min-new-tokens": "--min-tokens",
    "--max-length": "--max-model-len",
    "--max-total-tokens": "--max-model-len",
    "--num-beams": "--beam-width",
    "--num-return-sequences": "--n",
    "--num-samples": "--n",
    "--torch-dtype": "--dtype",
    "--device-map": "--device",
    "--batch-size": "--max-num-seqs",
    "--per-device-batch-size": "--max-num-seqs",
    "--max-batch-size": "--max-num-seqs",
    "--max-concurrency": "--max-num-seqs",
    "--concurrency": "--max-num-seqs",
    "--mem-fraction-static": "--gpu-memory-utilization",
    "--context-length": "--max-model-len",
    "--stop-sequences": "--stop",
    "--stop-strings": "--stop",
    "--force": "--overwrite",
    "--continue": "--resume",
    "--max-rows": "--limit",
    "--max-samples": "--limit",
    "--num-prompts": "--limit",
}
"""What is called otherwise here."""

_ARGUMENT = "the input is an argument: pagedrun generate INPUT"
_NO_SERVER = "pagedrun reads a file and has no server"
_ONE_DEVICE = "a run uses one device, or all cores of the processor"
_UNPACKED = "quantized checkpoints are detected automatically; see --quantization"
_OWN_DRAFTS = "drafts come from texts of the job, without a second model; see --speculate"

MISSING = {
    "--trust-remote-code": "pagedrun never runs code from a model folder, and supported models "
    "need none; leave it out",
    "--tensor-parallel-size": _ONE_DEVICE,
    "--pipeline-parallel-size": _ONE_DEVICE,
    "--data-parallel-size": _ONE_DEVICE,
    "--distributed-executor-backend": _ONE_DEVICE,
    "--gpu-layers": "a model is on one device as a whole; see --device",
    "--n-gpu-layers": "a model is on one device as a whole; see --device",
    "--cpu-offload-gb": "see --weights-memory, which limits the weights on the device",
    "--enable-chunked-prefill": "long prompts are always computed in chunks; see "
    "--max-num-batched-tokens",
    "--host": _NO_SERVER,
    "--port": _NO_SERVER,
    "--api-key": _NO_SERVER,
    "--served-model-name": _NO_SERVER,
    "--stream": "answers are written as they are finished; pagedrun ask streams a single answer",
    "--load-format": "weights are safetensors or a GGUF file, detected automatically",
    "--download-dir": "the hub's own cache is used; set HF_HOME to move it",
    "--cache-dir": "the hub's own cache is used; set HF_HOME to move it",
    "--enable-lora": "adapters are not read; merge them into the model first",
    "--lora-modules": "adapters are not read; merge them into the model first",
    "--lora": "adapters are not read; merge them into the model first",
    "--adapter": "adapters are not read; merge them into the model first",
    "--speculative-config": _OWN_DRAFTS,
    "--speculative-model": _OWN_DRAFTS,
    "--num-speculative-tokens": _OWN_DRAFTS,
    "--limit-mm-per-prompt": "only text is supported; rows with images are refused",
    "--tokenizer-mode": "the model's own fast tokenizer is used; see --tokenizer",
    "--max-seq-len-to-capture": "graphs are captured for planned batches; see --enforce-eager",
    "--rope-scaling": "it is read from the model's config.json",
    "--hf-overrides": "config.json cannot be overridden; edit a copy of the model's folder",
    "--tool-call-parser": "tool calls are returned as the text that the model writes",
    "--enable-auto-tool-choice": "tool calls are returned as the text that the model writes",
    "--structured-outputs-config": "see --json-schema, --regex, --choice and --grammar",
    "--guided-decoding-backend": "see --json-schema, --regex, --choice and --grammar",
    "--disable-log-requests": "rows are not logged; --quiet shows errors only",
    "--disable-log-stats": "see --quiet and --progress",
    "--compilation-config": "kernels are compiled ahead; see --enforce-eager",
    "--attention-backend": "the kernels are pagedrun's own; see --kernel-set",
    "--attn-implementation": "the kernels are pagedrun's own; see --kernel-set",
    "--flash-attn": "the kernels are pagedrun's own; see --kernel-set",
    "--threads": "all cores available to the process are used; set OMP_NUM_THREADS for fewer",
    "--ubatch-size": "see --max-num-batched-tokens",
    "--mlock": "weights are in memory once, or in the memory-mapped file",
    "--no-mmap": "weights are in memory once, or in the memory-mapped file",
    "--no-repeat-ngram-size": "see --repetition-penalty, --frequency-penalty and "
    "--stop-on-repetition",
    "--do-sample": "any --temperature above 0 samples",
    "--best-of": "--n draws several answers and --vote chooses among them",
    "--use-cache": "keys and values are always cached",
    "--echo": "--prompt-logprobs scores the prompt, which is returned with the row's columns",
    "--load-in-4bit": _UNPACKED,
    "--load-in-8bit": _UNPACKED,
    "--prompt": _ARGUMENT + ", or - for rows on standard input",
    "--file": _ARGUMENT,
    "--input": _ARGUMENT,
    "--input-file": _ARGUMENT,
    "--dataset": _ARGUMENT + ", which may be hf:NAME@CONFIG:SPLIT",
    "--num-workers": "one process reads, plans and computes; see --max-num-seqs",
    "--timeout": "a run ends when all rows are answered; see --stall-timeout",
}
"""What does not exist here, and why, or what there is instead."""


def explain(flag: str, known: set[str]) -> str | None:
    """Return a sentence about a flag that a command does not have, None where there is none.

    known: the flags of the command.
    """
    plain = flag.replace("_", "-")
    if plain != flag and plain in known:
        return f"{flag} is written {plain} here"
    if plain in MISSING:
        return f"{flag}: {MISSING[plain]}"
    if plain not in RENAMED:
        return None
    ours = RENAMED[plain]
    where = "" if ours in known else ", a flag of pagedrun generate"
    return f"{flag} is called {ours} here{where}"
