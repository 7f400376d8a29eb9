"""First run on a machine: its time, and the functions that it compiles.

    python benchmarks/first_run.py                     # the tables, of this checkout
    python benchmarks/first_run.py --against ../other  # with another checkout, in turns
    python benchmarks/first_run.py --kernels           # only what is compiled

Two runs: the demo, and one of Qwen3-0.6B's shape in bfloat16 (random weights, as many layers as
`--layers`: they change nothing about what is compiled). Each is made with an empty folder of
compiled kernels and once more with the same folder. Seconds of the clock and of the processors are
those of the whole command, its child processes included. The table of kernels is of one process
that compiles them one after the other: how many functions each takes in, and its processor time.
`NUMBA_CPU_NAME`, `NUMBA_CPU_FEATURES` and `ONEDNN_MAX_CPU_ISA` stand for another processor.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
DEMO = ("generate", str(ROOT / "recipes" / "demo" / "prompts.jsonl"), "--quiet", "-o", "out.jsonl")
SHAPE = ("bench", "throughput", "--shape", "qwen3-0.6b", "--dtype", "bfloat16", "--quiet")
SMALL = ("--rows", "4", "--shared", "160", "--unique", "8", "--output", "8", "--repeat", "1")
# Run by a process of its own: its cache has nothing, so that all is compiled.
KERNELS = """
import json, time
from pagedrun.kernels.environment.threads import prepare_environment
prepare_environment()
from numba.core.event import install_recorder
from pagedrun.kernels.cpu.compile_ahead import RunKernels
from pagedrun.kernels.kernel_set import KernelSet
kernel_set = KernelSet.best()
compiled = []
for dtype in ("bfloat16", "float32"):
    for kernel in RunKernels(dtype, dtype, kernel_set, ("silu",)).all():
        if kernel.is_cached is False:
            began = time.process_time()
            with install_recorder("numba:compile") as recorder:
                kernel.compile()
            functions = sum(each.is_start for _, each in recorder.buffer)
            name = kernel.dispatcher.py_func.__name__.lstrip("_")
            compiled.append([name, dtype, functions, time.process_time() - began])
print(json.dumps([kernel_set, compiled]))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="measure this one as well")
    parser.add_argument("--layers", default="2", help="of the shape; default: 2")
    parser.add_argument("--kernels", action="store_true", help="only what is compiled")
    given = parser.parse_args()
    if not given.kernels:
        trees = [ROOT] if given.against is None else [given.against.resolve(), ROOT]
        runs = {"demo": DEMO, "0.6B bfloat16": (*SHAPE, *SMALL, "--layers", given.layers)}
        print_runs(trees, runs)
    print_kernels()


def print_runs(trees: list[Path], runs: dict[str, tuple[str, ...]]) -> None:
    """Make each run in each checkout, cold and warm."""
    print("| run | checkout | kernels | wall, s | processors, s |\n|---|---|---|---|---|")
    for name, arguments in runs.items():
        for tree in trees:
            with TemporaryDirectory() as folder:
                for state in ("compiled", "from disk"):
                    wall, cpu = timed([sys.executable, "-m", "pagedrun", *arguments], tree, folder)
                    shown = "this" if tree == ROOT else commit(tree)
                    print(f"| {name} | {shown} | {state} | {wall:.1f} | {cpu:.1f} |", flush=True)
                    Path(folder, "out.jsonl").unlink(missing_ok=True)


def timed(command: list[str], tree: Path, folder: str) -> tuple[float, float]:
    """Run a command with its caches in `folder`; return seconds of wall and processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(
        command, env=environment(tree, folder), cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def environment(tree: Path, folder: str) -> dict[str, str]:
    """Return the environment of a checkout with its kernels in `folder`."""
    own = {"NUMBA_CACHE_DIR": f"{folder}/numba", "XDG_CACHE_HOME": f"{folder}/cache"}
    return {**os.environ, **own, "PYTHONPATH": str(tree / "src")}


def commit(tree: Path) -> str:
    """Return the name of a checkout's commit."""
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def print_kernels() -> None:
    """Compile the kernels of both dtypes, and print numbers of functions and seconds."""
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", KERNELS],
            env=environment(ROOT, folder),
            check=True,
            capture_output=True,
            text=True,
        )
    kernel_set, compiled = json.loads(done.stdout)
    print(f"\n| kernel ({kernel_set}) | dtype | functions | processor, s |\n|---|---|---|---|")
    for name, dtype, functions, seconds in compiled:
        print(f"| `{name}` | {dtype} | {functions} | {seconds:.2f} |")
    for dtype in ("bfloat16", "float32"):
        own = [each for each in compiled if each[1] == dtype]
        functions, seconds = sum(each[2] for each in own), sum(each[3] for each in own)
        print(f"| {len(own)} kernels | {dtype} | {functions} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
