"""Worker process of `AheadCompiler`: compiles one kernel per line of input.

Reads the fields of a `RunKernels` as JSON, then one index into its kernels per line, and answers
each with a line. Ends with its input, that is with its parent process, even while it compiles.
"""

import json
import os
import queue
import sys
import threading


def main() -> None:
    """Compile until the input ends."""
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    # Imported after the reader starts: imports take seconds, in which the input may end.
    from pagedrun.kernels.environment.threads import prepare_environment

    prepare_environment()
    from pagedrun.kernels.cpu.compile_ahead import PanelKey, RunKernels

    run = RunKernels(*json.loads(requests.get()))
    codes = tuple(PanelKey(*each) for each in run.codes)
    kernels = run._replace(activations=tuple(run.activations), codes=codes).all()
    while True:
        kernels[int(requests.get())].compile()
        print("compiled", flush=True)


def _read(requests: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
