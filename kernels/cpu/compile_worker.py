"""Worker process of `AheadCompiler`: compiles the kernels that it is told to, one a line.

Reads the fields of a `RunKernels` as JSON, then one index into its kernels per line, and answers
each with a line. Ends with its input, that is with the process that started it, even while it
compiles.
"""

import json
import os
import queue
import sys
import threading


def main() -> None:
    """Compile until the input ends."""
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(asked,), daemon=True).start()
    # Here, since it takes seconds, in which the input may end.
    from pagedrun.kernels.environment.threads import prepare_environment

    prepare_environment()
    from pagedrun.kernels.cpu.compile_ahead import RunKernels

    dtype, cache_dtype, kernel_set, activations = json.loads(asked.get())
    kernels = RunKernels(dtype, cache_dtype, kernel_set, tuple(activations)).all()
    while True:
        kernels[int(asked.get())].compile()
        print("compiled", flush=True)


def _read(asked: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        asked.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
