"""Jobs on a cluster of three nodes with random faults during the run.

    python benchmarks/replica_faults.py --jobs 20 --faults 5

Every job must give the bytes of one engine without replicas. What became of each fault is written
to a file of JSON lines, and a table of all to the screen.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder
from tests.replicas.demo_job import demo_job, write_rows
from tests.replicas.faults.fault import Kind
from tests.replicas.faults.nodes import QUICK, Nodes
from tests.replicas.faults.seeded_faults import SETTINGS, SeededFaults

NAMES = ("noticed_s", "went_on_s", "joined_s", "without_rows_s")


def table(found: list[dict[str, Any]]) -> list[str]:
    """Return the numbers of faults by kind, and their median and longest times, as a table."""
    lines = ["| fault | times | " + " | ".join(NAMES) + " |", "|---|--:|" + "--:|" * len(NAMES)]
    for kind, others in ((kind, others) for kind in Kind for others in (False, True)):
        mine = [
            each
            for each in found
            if each["kind"] == kind.name and bool(each["num_others"]) == others
        ]
        if not mine:
            continue
        cells = []
        for name in NAMES:
            times = [each[name] for each in mine if each[name] is not None]
            middle = statistics.median(times) if times else 0.0
            cells.append(f"{middle:.1f} ≤ {max(times):.1f} ({len(times)})" if times else "")
        name = f"{kind.value}, others run" if others else kind.value
        lines.append(" | ".join([f"| {name}", str(len(mine)), *cells]) + " |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--faults", type=int, default=5, help="of each job")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--kinds",
        default="",
        help="in place of drawn ones, with commas: " + ", ".join(Kind.__members__),
    )
    parser.add_argument(
        "--own-checks",
        action="store_true",
        help="look for lost nodes as often as Ray does by itself",
    )
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no job after these")
    parser.add_argument("--output", type=Path, default=Path("replica-faults.jsonl"))
    options = parser.parse_args()
    kinds = [Kind[name] for name in options.kinds.split(",") if name]
    ends_at = time.monotonic() + 60 * options.minutes
    found: list[dict[str, Any]] = []
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, options.output.open("a") as output:
        folder = Path(name)
        write_rows(folder / "rows.jsonl", times=4)
        wanted = demo_job(
            folder,
            "one.jsonl",
            None,
            engine=EngineConfig(model=demo_model_folder(), num_blocks=600, max_num_seqs=8),
            sampling=SamplingParams(max_tokens=12, temperature=1.0),
        )[1]
        settings = SETTINGS if options.own_checks else {**QUICK, **SETTINGS}
        nodes = Nodes(3, settings)
        for seed in range(options.first_seed, options.first_seed + options.jobs):
            if time.monotonic() > ends_at:
                break
            job = SeededFaults(nodes, folder, seed, options.faults, kinds)
            began, why = time.monotonic(), None
            try:
                job.run(wanted)
            except Exception:
                why = traceback.format_exc()
                print(why, flush=True)
                nodes.close()  # whatever state they are in
                nodes = Nodes(3, settings)
            ends["as wanted" if why is None else "otherwise"] += 1
            mine = [
                {
                    "seed": seed,
                    "kind": each.kind.name,
                    "num_others": each.num_others,
                    **each.figures(),
                }
                for each in job.faults
            ]
            found += mine
            for each in mine:
                print(json.dumps(each), file=output, flush=True)
            seconds = time.monotonic() - began
            end = {"seed": seed, "seconds": seconds, "failure": why}
            print(json.dumps(end), file=output, flush=True)
            print(
                seed, f"{time.monotonic() - began:.0f} s", [each.kind.name for each in job.faults]
            )
        nodes.close()
    print(dict(ends), len(found), "faults", *table(found), sep="\n")
    return int(ends["otherwise"] > 0)


if __name__ == "__main__":
    sys.exit(main())
