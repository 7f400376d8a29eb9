"""Pytest in processes that have imported its libraries: five seconds less a run.

Reads lines of JSON from stdin: arguments of pytest, and the file that takes what it prints. Writes
a line for each: the exit status.
"""

import json
import os
import sys

import pytest

from pagedrun.kernels.environment.threads import prepare_environment

prepare_environment()
os.environ["TRITON_INTERPRET"] = "1"

import hypothesis  # noqa: E402, F401
import numba  # noqa: E402, F401
import torch  # noqa: E402, F401
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402, F401


def run(arguments: list[str], printed: str) -> int:
    """Run pytest in a child process, with the modules of this checkout as they are now."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(printed, os.O_WRONLY | os.O_CREAT)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)
    sys.exit(pytest.main(arguments))


def main() -> None:
    """Serve until stdin ends."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("pagedrun", "tests")]:
        del sys.modules[name]
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        arguments, printed = json.loads(line)
        print(run(arguments, printed), file=answers, flush=True)


if __name__ == "__main__":
    main()
