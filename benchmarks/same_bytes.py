"""Does a change keep every byte? Records digests of a fixed set of runs, or compares with them.

    python benchmarks/same_bytes.py record before.json
    python benchmarks/same_bytes.py check before.json

The runs answer the bundled prompts with the bundled model: greedy and sampled, float32 and
bfloat16, pools that preempt, a prefix store filled and used, a run cut off and resumed. A digest is
taken of the answers as they lie on disk, of the report and of the snapshot, both without what a
clock or the machine's free memory decides. Digests belong to the processor that made them.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ROOT / "recipes" / "demo" / "prompts.jsonl"
_SAMPLED = ("--temperature", "0.8", "--top-p", "0.95", "--n", "2", "--seed", "7")
_SMALL_POOL = ("--num-blocks", "96", "--max-num-seqs", "64", "--max-num-batched-tokens", "300")
_STORE = ("--prefix-store", "store")
# Runs that preempt at least this often: without it they would not show what they are for.
_PREEMPTING = {"swap": 1, "recompute": 1, "sampled-small-pool": 10}
# A run is its name and what is passed to `generate`; runs go in this order, in one folder.
RUNS: dict[str, tuple[str, ...]] = {
    "greedy": (),
    "greedy-float32": ("--dtype", "float32"),
    "sampled": _SAMPLED,
    "sampled-float32": (*_SAMPLED, "--dtype", "float32"),
    "swap": (*_SMALL_POOL, "--no-prefix-caching"),
    "recompute": (*_SMALL_POOL, "--no-prefix-caching", "--preemption-mode", "recompute"),
    "sampled-small-pool": (*_SAMPLED, *_SMALL_POOL),
    "ordered": ("--ordered", "--system", "Answer in one word.", "--max-tokens", "5"),
    "store-filled": _STORE,
    "store-used": _STORE,
    "resumed": (),
}
_KEPT_ROWS = 100  # of the run that is cut off
# Of reports: what a clock, free memory or the place of the checkout decides.
_VOLATILE = {"time", "t", "seconds", "seconds_saved", "step_costs", "hardware", "model"}
_VOLATILE |= {"activations_peak", "other", "free"}
_VOLATILE_ARRAYS = {"samples.times", "facts"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["record", "check"])
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        digests = {name: digests_of(name, flags, Path(folder)) for name, flags in RUNS.items()}
    if given.action == "record":
        given.file.write_text(json.dumps(digests, indent=1) + "\n")
        return
    before = json.loads(given.file.read_text())
    changed = [
        f"{name}: {part}"
        for name, parts in digests.items()
        for part in parts
        if before[name][part] != parts[part]
    ]
    print("\n".join(changed) or f"the same bytes in all {len(digests)} runs")
    sys.exit(1 if changed else 0)


def digests_of(name: str, flags: tuple[str, ...], folder: Path) -> dict[str, str]:
    """Do one run; return the digests of its answers, report and snapshot."""
    output = folder / f"{name}.jsonl"
    if name == "resumed":
        _generate((), output, folder)
        lines = output.read_bytes().splitlines(keepends=True)
        output.write_bytes(b"".join(lines[:_KEPT_ROWS]) + lines[_KEPT_ROWS][:20])
        flags = ("--resume",)
    _generate(flags, output, folder)
    report = json.loads(Path(f"{output}.report.json").read_text())
    preemptions = sum(report["preemptions"].values())
    if preemptions < _PREEMPTING.get(name, 0):
        sys.exit(f"{name}: {preemptions} preemptions, fewer than it should show")
    with np.load(f"{output}.snapshot.npz") as arrays:
        snapshot = hashlib.sha256()
        for key in sorted(set(arrays.files) - _VOLATILE_ARRAYS):
            snapshot.update(f"{key} {arrays[key].dtype} {arrays[key].shape}".encode())
            snapshot.update(np.ascontiguousarray(arrays[key]).tobytes())
    return {
        "answers": hashlib.sha256(output.read_bytes()).hexdigest(),
        "report": hashlib.sha256(json.dumps(_stable(report)).encode()).hexdigest(),
        "snapshot": snapshot.hexdigest(),
    }


def _generate(flags: tuple[str, ...], output: Path, folder: Path) -> None:
    command = (sys.executable, "-m", "pagedrun", "generate", str(PROMPTS), "--quiet")
    subprocess.run(
        [*command, "--output", str(output), *flags],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        check=True,
    )


def _stable(value: Any) -> Any:
    """Return a report without what a clock or free memory decides, keys in order."""
    if isinstance(value, dict):
        return {key: _stable(value[key]) for key in sorted(value) if key not in _VOLATILE}
    if isinstance(value, list):
        return [_stable(each) for each in value]
    return value


if __name__ == "__main__":
    main()
