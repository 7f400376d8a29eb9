"""The files of a finished run, for those who look at them; and the command that does."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagedrun.paged.files.atomic import json_fields
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.reader import open_rows
from pagedrun.paged.job.output.manifest import JobStatus, Manifest
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.metrics.snapshot import Preemptions, PrefixNodes, Snapshot
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.recipes.demo import demo_model_folder
from tests.support.small_runs import play

HOSTILE = "\x1b[2J[/red]\u202e:smile:"
SYSTEM = "Answer in one word."
REPORT: dict[str, Any] = {
    "rows": {"total": 9, "ok": 9, "failed": 0, "skipped": 0},
    "tokens": {"prompt": 960},
    "kv": {"block_size": 4, "num_blocks": 6, "bytes_per_token": 64, "peak_blocks": 6},
    "prefix": {"hits": 30, "misses": 10, "hit_tokens": 480, "bytes_saved": 30720},
    "copy_on_write": {"forks": 2, "block_copies": 1},
    "preemptions": {"swap": 1, "recompute": 0},
    "timeline": [
        {"t": 1, "step": 9, "blocks_used": 5, "blocks_shared": 2, "blocks_cached": 1, "tokens": 15}
    ],
}


def snapshot() -> Snapshot:
    gone = Preemptions.of(
        **{name: [1] for name in ("step", "row", "tokens", "blocks", "for_row", "needed")},
        sample=[0],
        swapped=[True],
        free=[0],
    )
    nodes = PrefixNodes.of(
        parent=[-1, 0], start=[0, 8], end=[8, 12], rows=[3, 2], row=[0, 1], saved=[16, 4]
    )
    return replace(play(4).snapshot(), preemptions=gone, prefixes=nodes)


def leave_run(folder: Path) -> Path:
    """Write the files of a run of nine rows, with a real job's manifest; return the output."""
    rows = folder / "rows.jsonl"
    prompts = [f"Who works with Ann in room {number}? {HOSTILE}" for number in range(9)]
    ids = [HOSTILE, *(f"id-{number}" for number in range(1, 8)), 1234]
    lines = zip(ids, prompts, strict=True)
    rows.write_text("".join(json.dumps({"id": i, "prompt": p}) + "\n" for i, p in lines))
    output = folder / "rows.out.jsonl"
    answers = [
        {"index": index, "id": ids[index], "text": "id-9", "error": None}
        for index in reversed(range(9))
    ]
    output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in answers))
    config = JobConfig(
        input=str(rows),
        output=str(output),
        engine=EngineConfig(model=demo_model_folder()),
        prompts=PromptConfig(system=SYSTEM),
    )
    with open_rows(config.input) as source:
        for _ in source:
            pass
        manifest = Manifest.start(config, source.digest(whole=True), 1024, {})
    names = {".report.json": REPORT, ".run.json": manifest.at(JobStatus.FINISHED, {})}
    for suffix, value in names.items():
        (folder / f"rows.out.jsonl{suffix}").write_text(json.dumps(value, default=json_fields))
    (folder / "rows.out.jsonl.snapshot.npz").write_bytes(snapshot().to_bytes())
    return output


def beside(output: Path, suffix: str) -> Path:
    return output.with_name(output.name + suffix)
