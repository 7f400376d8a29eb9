from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import caching

from pagedrun.kernels.cpu import jit


def fill(out: Any) -> None:
    for i in numba.prange(out.shape[0]):
        out[i] = i


def test_kernels_compile_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError):
        numba.njit(cache=True)(fill)
    out = np.zeros(100)
    jit.kernel(fill)(out)
    assert (out == np.arange(100)).all()


def test_small_work_stays_on_one_thread() -> None:
    jit.choose_threads(1)
    assert numba.get_num_threads() == 1
    jit.choose_threads(1 << 30)
    assert numba.get_num_threads() == numba.config.NUMBA_NUM_THREADS


def test_kept_code_is_used_until_any_source_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def hits_of_a_new_process() -> int:
        compiled = jit.kernel(fill)
        compiled(np.zeros(3))
        return sum(compiled.stats.cache_hits.values())

    assert hits_of_a_new_process() == 0
    assert hits_of_a_new_process() == 1
    monkeypatch.setattr(jit, "source_digest", lambda: "after an edit")
    assert hits_of_a_new_process() == 0
    assert hits_of_a_new_process() == 1


def test_digest_covers_the_parts_and_constants_that_kernels_take_in() -> None:
    before = jit.source_digest.__wrapped__()
    assert before == jit.source_digest()
    read_bytes = Path.read_bytes

    def edited(path: Path) -> bytes:
        return read_bytes(path) + (b"#" if path.name == "partition.py" else b"")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", edited)
        assert jit.source_digest.__wrapped__() != before
