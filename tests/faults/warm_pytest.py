"""Pytest in processes that have imported its libraries: five seconds less a run.

Reads lines of JSON from stdin: arguments of pytest, the file that takes what it prints, and the
most seconds of a processor. Writes a line for each: the exit status, or a signal's number below 0.
"""

import json
import os
import resource
import sys

import pytest

from pagedrun.kernels.environment.threads import prepare_environment

prepare_environment()

import torch  # noqa: E402

if not torch.cuda.is_available():  # as tests/conftest.py does, before Triton is imported
    os.environ["TRITON_INTERPRET"] = "1"

import hypothesis  # noqa: E402, F401
import numba  # noqa: E402, F401
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402, F401

MOST_BYTES = 8 << 30  # for a fault that allocates without an end


def run(arguments: list[str], printed: str, seconds: int) -> int:
    """Run pytest in a child process, with the modules of this checkout as they are now."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(printed, os.O_WRONLY | os.O_CREAT)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)
    # Of a processor, so that a busy machine decides nothing; a test that only waits has a timeout.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    sys.exit(pytest.main(arguments))


def main() -> None:
    """Serve until stdin ends."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("pagedrun", "tests")]:
        del sys.modules[name]
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(run(*json.loads(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
