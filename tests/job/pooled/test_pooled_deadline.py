"""`--deadline` of texts: a sample of the rows is done, and the rest is resumed."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.execution.pooling.flat_pass import FlatPass
from pagedrun.paged.execution.pooling.text_steps import PoolingSampler
from tests.job.pooled.pooled_jobs import read, run, write
from tests.support.tiny_encoders import texts, write_model

NUM_ROWS = 60


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_a_sample_of_the_rows_is_done(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "model", kind)
    rows, out = tmp_path / "rows.jsonl", tmp_path / "v.npy"
    write(rows, [{"text": each} for each in texts([3 + i % 7 for i in range(NUM_ROWS)])])
    job = ("embed", rows, "-o", out, "--model", tmp_path / "model", "--max-num-seqs", 1)
    with monkeypatch.context() as patch:
        for kept, name in ((FlatPass, "__call__"), (PoolingSampler, "sample")):
            patch.setattr(kept, name, slowly(getattr(kept, name)))
        run(capsys, *job, "--max-num-batched-tokens", 16, "--deadline", "4s", status=4)
    done = [each["index"] for each in read(Path(f"{out}.journal.jsonl"))]
    assert 5 < len(done) < NUM_ROWS
    assert max(done) - min(done) > len(done), "rows of the whole file, not the first ones"
    run(capsys, *job, "--resume")
    whole = tmp_path / "whole.npy"
    run(capsys, *job[:3], whole, *job[4:])
    assert out.read_bytes() == whole.read_bytes()
    assert np.isfinite(np.load(out)).all()
    report = json.loads(Path(f"{out}.report.json").read_text())
    assert report["rows"]["skipped"] == len(done)


def slowly(compute: Any) -> Any:
    def call(*args: Any) -> Any:
        time.sleep(0.1)
        return compute(*args)

    return call
