"""Compilation of kernels: as a whole, once, kept on disk, and where nothing can be written."""

import gc
import importlib
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import caching, codegen
from numba.core.registry import cpu_target

from pagedrun.kernels.cpu import jit


@jit.inlined()
def doubled(number: Any) -> Any:
    return number * 2


@jit.inlined()
def filled(out: Any, number: Any) -> None:
    lines = np.zeros(3, np.int64)
    for i in range(3):
        lines[i] = doubled(number) + i
        out[i] = lines[i]


def fill(out: Any) -> None:
    for row in numba.prange(out.shape[0]):
        filled(out[row], row)


def fill_columns(out: Any) -> None:
    for column in numba.prange(out.shape[1]):
        filled(out[:, column], column)


EXPECTED = np.arange(4)[:, None] * 2 + np.arange(3)


def without_a_cache(function: Any) -> Any:
    """Compile a kernel where nothing can be written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
        with pytest.raises(RuntimeError):
            numba.njit(cache=True)(function)
        return jit.kernel(function)


def test_a_kernel_is_translated_once_with_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    translated = []
    finish = codegen.JITCodeLibrary._finalize_final_module

    def counted(library: Any) -> None:
        translated.append(library.name)
        finish(library)

    monkeypatch.setattr(codegen.JITCodeLibrary, "_finalize_final_module", counted)
    out = np.zeros((4, 3), np.int64)
    without_a_cache(fill)(out)
    assert (out == EXPECTED).all()
    assert [name for name in translated if name != "nrt"] == ["fill"]


def test_a_part_serves_two_kernels_and_a_function_that_is_none() -> None:
    rows, columns = np.zeros((4, 3), np.int64), np.zeros((3, 4), np.int64)
    without_a_cache(fill)(rows)
    without_a_cache(fill_columns)(columns)
    assert (rows == EXPECTED).all()
    assert (columns == EXPECTED.T).all()

    @numba.njit  # type: ignore[untyped-decorator]
    def plain(out: Any) -> None:
        filled(out, 5)
        out[0] += np.zeros(2, np.int64)[0] + doubled(1)

    line = np.zeros(3, np.int64)
    plain(line)
    assert list(line) == [12, 11, 12]


@pytest.mark.filterwarnings("ignore::numba.NumbaPerformanceWarning")  # it has no parallel loop
def test_an_error_of_a_part_reaches_python() -> None:
    @jit.inlined()
    def refuse(number: Any) -> None:
        if number < 0:
            raise ValueError("below zero")

    def check(numbers: Any) -> None:
        for i in range(numbers.shape[0]):
            refuse(numbers[i])

    compiled = without_a_cache(check)
    compiled(np.ones(2))
    with pytest.raises(ValueError, match="below zero"):
        compiled(-np.ones(2))


def test_garbage_is_collected_again_when_a_kernel_is_compiled() -> None:
    without_a_cache(fill)(np.zeros((4, 3), np.int64))
    assert gc.isenabled()


def test_what_is_compiled_elsewhere_is_compiled_as_numba_does() -> None:
    without_a_cache(fill)(np.zeros((4, 3), np.int64))
    library = cpu_target.target_context.codegen().create_library("any")
    assert type(library) is codegen.JITCodeLibrary


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
        compiled(np.zeros((4, 3), np.int64))
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


def add_one(numbers: Any) -> Any:
    return numbers.sum() + 1


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeroed": lambda data: bytes(len(data)),
    "a byte": lambda data: data[:-60] + bytes([data[-60] ^ 1]) + data[-59:],
    "longer": lambda data: data + b"x",
}


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_a_damaged_file_of_kept_code_is_compiled_again(
    ending: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a file with one other byte, Numba would run the machine code."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def is_read_by_a_new_process() -> bool:
        compiled = jit.serial_kernel(add_one)
        assert compiled(np.arange(4)) == 7
        return bool(compiled.stats.cache_hits)

    assert not is_read_by_a_new_process()
    [path] = tmp_path.rglob(f"*.{ending}")
    good = path.read_bytes()
    for name, damage in DAMAGES.items():
        path.write_bytes(damage(good))
        assert not is_read_by_a_new_process(), name
        assert is_read_by_a_new_process(), name
    path.unlink()
    path.mkdir()  # cannot be replaced: compiled by each process
    assert not is_read_by_a_new_process()
    assert not is_read_by_a_new_process()


def test_code_of_other_argument_types_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two processes that compile one kernel at a time begin with the same index."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    for numbers in (np.arange(4), np.arange(4.0)):
        for index in tmp_path.rglob("*.nbi"):
            index.unlink()
        assert jit.serial_kernel(add_one)(numbers) == 7
    assert len(list(tmp_path.rglob("*.nbc"))) == 2


COMPILES = """
import sys
from numba.core import event
sys.path.append(sys.argv[1])
import kernel_of_two_processes as added
print("here", flush=True)
with event.install_recorder("numba:compile") as compiled:
    print(added.added(1))
print(sum(each.is_start and each.data["dispatcher"] is added.added for _, each in compiled.buffer))
"""


@pytest.mark.heavy("two processes, one of which compiles")
def test_a_process_waits_for_the_code_that_another_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "kernel_of_two_processes.py"
    source.write_text(
        "from pagedrun.kernels.cpu import jit\n\n\n"
        "@jit.serial_kernel\ndef added(number):\n    return number + 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    kernel = importlib.import_module(source.stem).added
    with kernel._cache.turn((numba.types.int64,), kernel.targetctx):
        child = subprocess.Popen(
            [sys.executable, "-c", COMPILES, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        # It compiles in less time than this, if it does not wait.
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1)
        kernel._cache.turn = lambda *_: nullcontext()  # this process has it already
        assert kernel(1) == 2
    assert child.communicate()[0] == "2\n0\n"
    assert not list(tmp_path.rglob("*.lock"))
